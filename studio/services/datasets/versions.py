"""Dataset versions: the rows that one mapping of a file produced, kept while a run needs them.

    <id>/original.csv  <id>/1/train.jsonl  [<id>/1/validation.jsonl]  [<id>/1/images/<sha256>]

A version never changes. Another mapping of the file makes the next version, unless its rows are
equal, byte for byte, to those of an existing one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlmodel import Session, col, func, select

from studio.db.states import DatasetStatus
from studio.db.tables import Dataset, DatasetVersion, Run
from studio.errors import ConflictError, NotFoundError
from studio.intake.mapping import Mapping
from studio.intake.quality import finding_rows
from studio.intake.rows.paging import Page, read_page, read_rows, search_rows, search_rows_backward
from studio.services.datasets import datasets
from studio.services.storage import atomic_dirs

Part = Literal["train", "validation"]
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery:
    """Which rows to return."""

    part: Part = "train"
    after: int = 0
    before: int | None = None
    """Only the nearest row before this one; for a search."""
    words: str = ""
    """Only rows that contain this text, ignoring case."""
    numbers: frozenset[int] = frozenset()
    """Only these rows."""
    finding: str = ""
    """Only rows that have the finding with this code."""


FIRST_ROWS = RowQuery()


def get(db: Session, dataset_id: int, number: int) -> DatasetVersion:
    query = select(DatasetVersion).where(
        DatasetVersion.dataset_id == dataset_id, DatasetVersion.number == number
    )
    version = db.exec(query).first()
    if version is None:
        raise NotFoundError(
            f"Dataset {dataset_id} has no version {number}.", hint="It may have been deleted."
        )
    return version


def list_versions(db: Session, dataset_id: int) -> Sequence[DatasetVersion]:
    """Return all versions of a dataset, newest first."""
    query = select(DatasetVersion).where(DatasetVersion.dataset_id == dataset_id)
    return db.exec(query.order_by(col(DatasetVersion.number).desc())).all()


def current(db: Session, dataset: Dataset) -> DatasetVersion | None:
    """Return the version that new runs train on, if there is one yet."""
    return None if dataset.version is None else get(db, dataset.id or 0, dataset.version)


def current_by_dataset(db: Session, dataset_rows: Sequence[Dataset]) -> dict[int, DatasetVersion]:
    """Return the current version of each dataset that has one, by dataset id."""
    query = select(DatasetVersion).join(
        Dataset,
        (col(Dataset.id) == DatasetVersion.dataset_id)
        & (col(Dataset.version) == DatasetVersion.number),
    )
    dataset_ids = {dataset.id for dataset in dataset_rows}
    return {
        version.dataset_id: version
        for version in db.exec(query)
        if version.dataset_id in dataset_ids
    }


def current_mapping(db: Session, dataset_id: int) -> Mapping:
    """Return the mapping of the current version.

    Raises:
        ConflictError: The file has not been read yet.

    """
    version = current(db, datasets.get(db, dataset_id))
    if version is None:
        raise ConflictError(
            f"Dataset {dataset_id} has no rows yet.", hint="Confirm its mapping first."
        )
    return Mapping.model_validate(version.mapping)


def require(db: Session, name: str) -> DatasetVersion:
    """Return the version that a new run of a recipe trains on.

    Raises:
        InvalidError: There is no such dataset, or it has no rows yet.

    """
    dataset = datasets.require(db, name)
    assert dataset.version is not None  # noqa: S101 -- a dataset without one is refused above
    return get(db, dataset.id or 0, dataset.version)


def find_for_run(db: Session, run: Run) -> DatasetVersion | None:
    """Return the version a run trains on, unless it was deleted."""
    version_id = run.dataset_version_id
    return None if version_id is None else db.get(DatasetVersion, version_id)


def row_files(folder: Path, version: DatasetVersion) -> tuple[Path, Path | None]:
    """Return the paths of the training rows and, if there are any, the validation rows."""
    home = folder / str(version.dataset_id) / str(version.number)
    return home / "train.jsonl", home / "validation.jsonl" if version.validation_rows else None


def image_file(folder: Path, version: DatasetVersion, sha256: str) -> Path:
    """Return the path of an image of a version.

    Raises:
        NotFoundError: It has no such image.

    """
    from studio.intake.images.image_files import IMAGES  # noqa: PLC0415 -- heavy import

    home = folder / str(version.dataset_id) / str(version.number)
    return _existing_image(home / IMAGES, sha256)


def preview_image_file(folder: Path, dataset_id: int, sha256: str) -> Path:
    """Return the path of an image that a preview of the mapping shows.

    Raises:
        NotFoundError: There is no such image, or no longer.

    """
    from studio.intake.conversion.file_preview import PREVIEW_IMAGES  # noqa: PLC0415 -- heavy import

    return _existing_image(folder / str(dataset_id) / PREVIEW_IMAGES, sha256)


def _existing_image(folder: Path, sha256: str) -> Path:
    # Never build a path from anything but a hash.
    path = folder / (sha256 if _SHA256.fullmatch(sha256) else "none")
    if not path.is_file():
        raise NotFoundError("There is no such image.", hint="It may have been deleted.")
    return path


def load_rows(
    folder: Path, version: DatasetVersion, query: RowQuery = FIRST_ROWS, *, limit: int = 50
) -> Page:
    """Return a page of rows. A text search stops early and reports how far it got."""
    train, validation = row_files(folder, version)
    path = train if query.part == "train" else validation
    if path is None:
        return Page(rows=[], has_more=False)
    numbers = query.numbers
    if query.finding:
        numbers = frozenset(finding_rows.rows_with_finding(train.parent, query.finding, query.part))
    if numbers or query.finding:
        return read_rows(path, numbers, after=query.after, limit=limit)
    if query.words and query.before is not None:
        return search_rows_backward(path, query.words, before=query.before)
    if query.words:
        return search_rows(path, query.words, after=query.after, limit=limit)
    return read_page(path, after=query.after, limit=limit)


def activate(db: Session, dataset_id: int, number: int) -> DatasetVersion:
    """Make a version the current one, for new runs."""
    version = get(db, dataset_id, number)
    dataset = datasets.get(db, dataset_id)
    dataset.version, dataset.status = number, DatasetStatus.READY
    return version


def count_runs(db: Session, dataset_id: int) -> dict[int, int]:
    """Return how many runs use each version, by version number."""
    query = (
        select(DatasetVersion.number, func.count(col(Run.id)))
        .join(Run, col(Run.dataset_version_id) == col(DatasetVersion.id))
        .where(DatasetVersion.dataset_id == dataset_id)
        .group_by(col(DatasetVersion.number))
    )
    return dict(db.exec(query).all())


def delete(db: Session, folder: Path, dataset_id: int, number: int) -> None:
    """Delete a version that is not needed, with its rows.

    Raises:
        ConflictError: It is the current version, or a run uses it.

    """
    version = get(db, dataset_id, number)
    if datasets.get(db, dataset_id).version == number:
        raise ConflictError(
            f"Version {number} is the current version.", hint="Switch to another version first."
        )
    if runs := count_runs(db, dataset_id).get(number):
        raise ConflictError(
            f"{runs} runs use version {number}." if runs > 1 else f"1 run uses version {number}.",
            hint="It is kept as long as these runs exist.",
        )
    db.delete(version)
    atomic_dirs.delete_on_commit(db, folder / str(dataset_id) / str(number))
