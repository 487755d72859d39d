"""The built-in dataset, so that a first run needs no upload."""

from dataclasses import asdict
from pathlib import Path

from sqlmodel import Session, select

from studio import files, starter
from studio.db.tables import Dataset, DatasetVersion
from studio.intake.conversion.converter import hash_rows
from studio.intake.mapping import Mapping
from studio.intake.quality import dataset_checks
from studio.run_manifest import file_sha256
from studio.services.storage import atomic_dirs

NAME = "starter"


def get_or_create(db: Session, folder: Path) -> Dataset:
    """Return the built-in dataset; create it on first use."""
    existing = db.exec(select(Dataset).where(Dataset.name == NAME)).first()
    if existing is not None:
        return existing
    with atomic_dirs.staging_dir(folder) as stage:
        first = stage / "1"
        first.mkdir()
        starter.write_rows(first)
        train, validation = first / "train.jsonl", first / "validation.jsonl"
        dataset = Dataset(
            name=NAME,
            filename=train.name,
            format="jsonl",
            bytes=train.stat().st_size,
            sha256=file_sha256(train),
            source=NAME,
            version=1,
        )
        db.add(dataset)
        db.flush()
        # The web creates it at startup, and all its rows are English.
        report = dataset_checks.check_and_store(first, languages=False)
        version = DatasetVersion(
            dataset_id=dataset.id or 0,
            number=1,
            kind="conversation",
            mapping=Mapping(shape="messages", roles={"messages": ["messages"]}).model_dump(),
            sha256=hash_rows(first),
            train_rows=_count_lines(train),
            validation_rows=_count_lines(validation),
            findings=[asdict(finding) for finding in report.findings],
            answers=asdict(report.answers),
        )
        db.add(version)
        files.sync_folder(stage)
        atomic_dirs.move_into_place(stage, folder / str(dataset.id))
    return dataset


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
