"""Move dataset files from the layout of older homes to the current one.

Before versions existed, `<id>/1/train.jsonl` was `<id>/train.jsonl`. Each step is a rename or
idempotent, so the next start resumes an interrupted migration.
"""

from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine
from sqlmodel import select
from sqlmodel.sql.expression import SelectOfScalar

from studio.db.session import read_session, unit_of_work
from studio.db.tables import DatasetVersion
from studio.intake.conversion.converter import hash_rows
from studio.services.datasets import pending_datasets

_PARTS = ("train.jsonl", "validation.jsonl")


def needs_migration(engine: Engine) -> bool:
    """Return whether versions exist whose files have not been moved."""
    with read_session(engine) as db:
        return db.exec(_unmigrated()).first() is not None


def migrate(engine: Engine, folder: Path) -> None:
    """Move the files of each such version, and store the checksum of its rows."""
    with read_session(engine) as db:
        versions = db.exec(_unmigrated()).all()
    for version in versions:
        home = folder / str(version.dataset_id)
        _move(home, home / str(version.number))
        if version.validation_rows:
            _link_validation(home / str(version.number) / "validation.jsonl", home)
        sha256 = hash_rows(home / str(version.number))
        with unit_of_work(engine) as db:
            db.get_one(DatasetVersion, version.id).sha256 = sha256


def _unmigrated() -> SelectOfScalar[DatasetVersion]:
    return select(DatasetVersion).where(DatasetVersion.sha256 == "")


def _move(home: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in _PARTS:
        with suppress(FileNotFoundError):
            (home / name).replace(target / name)


def _link_validation(rows: Path, home: Path) -> None:
    """Link the validation rows as the uploaded validation file, which was not stored then."""
    with suppress(FileExistsError):
        (home / f"{pending_datasets.VALIDATION}.jsonl").hardlink_to(rows)
