"""Find, rename and delete datasets. `studio.services.datasets.versions` has their rows."""

import difflib
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from sqlmodel import Session, col, select, update

from studio.db.states import LIVE, DatasetStatus, RunStatus
from studio.db.tables import Dataset, DatasetVersion, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.services.storage import atomic_dirs

NAME_LIMIT = 200

_STATUSES_IN_USE = {*LIVE, RunStatus.QUEUED, RunStatus.PAUSED}
_NOT_READY_REASONS = {
    DatasetStatus.DRAFT: "a draft without a confirmed mapping",
    DatasetStatus.BUILDING: "being read",
    DatasetStatus.FAILED: "a file that could not be read",
    DatasetStatus.READY: "without a version",
}


def get(db: Session, dataset_id: int) -> Dataset:
    dataset = db.get(Dataset, dataset_id)
    if dataset is None:
        raise NotFoundError(
            f"Dataset {dataset_id} does not exist.", hint="It may have been deleted."
        )
    return dataset


def newest(db: Session, *, limit: int = 1000, before: int | None = None) -> Sequence[Dataset]:
    query = select(Dataset).order_by(col(Dataset.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Dataset.id) < before)
    return db.exec(query).all()


def list_with_rows(db: Session, kinds: Collection[str]) -> Sequence[str]:
    """Return the names of the datasets whose current rows are of one of these kinds."""
    is_current = (col(DatasetVersion.dataset_id) == Dataset.id) & (
        col(DatasetVersion.number) == Dataset.version
    )
    query = select(Dataset.name).join(DatasetVersion, is_current)
    return db.exec(query.where(col(DatasetVersion.kind).in_(kinds)).order_by(Dataset.name)).all()


def require(db: Session, name: str) -> Dataset:
    """Return the dataset that a recipe names, by its name or its id.

    Raises:
        InvalidError: There is no such dataset, or it has no rows yet.

    """
    dataset = db.exec(select(Dataset).where(Dataset.name == name)).first()
    if dataset is None and name.isdecimal() and len(name) < len(str(2**63)):
        dataset = db.get(Dataset, int(name))
    if dataset is None:
        names = db.exec(select(Dataset.name).order_by(Dataset.name)).all()
        suggestions = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
        hint = (
            f"Did you mean {' or '.join(suggestions)}?"
            if suggestions
            else "Add one on the Datasets page."
        )
        raise InvalidError(f"There is no dataset named {name}.", hint=hint, param="dataset")
    if dataset.version is None:
        raise InvalidError(
            f"{dataset.name} has no rows yet: it is {_NOT_READY_REASONS[dataset.status]}.",
            hint=f"Open dataset {dataset.id} for details.",
            param="dataset",
        )
    return dataset


def rename(db: Session, dataset_id: int, name: str) -> Dataset:
    """Rename a dataset. Runs refer to its rows by id, so they need not wait.

    Raises:
        ConflictError: The name is taken.

    """
    dataset = get(db, dataset_id)
    name = clean_name(name)
    if name != dataset.name:
        dataset.name = available_name(db, name)
    return dataset


def delete(db: Session, folder: Path, dataset_id: int) -> None:
    """Delete a dataset and its files. Runs that were trained on it stay.

    Raises:
        ConflictError: An unfinished run needs it.

    """
    dataset = get(db, dataset_id)
    _check_unused(db, dataset)
    versions = select(DatasetVersion.id).where(DatasetVersion.dataset_id == dataset_id)
    run_version = col(Run.dataset_version_id)
    db.exec(update(Run).where(run_version.in_(versions)).values(dataset_version_id=None))
    db.delete(dataset)
    atomic_dirs.delete_on_commit(db, folder / str(dataset_id))


def cleanup(db: Session, folder: Path) -> None:
    """Remove what uploads and deletions left behind when the studio was killed."""
    numbers: dict[str, set[str]] = {str(number): set() for number in db.exec(select(Dataset.id))}
    for owner, number in db.exec(select(DatasetVersion.dataset_id, DatasetVersion.number)):
        numbers[str(owner)].add(str(number))
    atomic_dirs.remove_orphans(folder, numbers)
    for name, version_numbers in numbers.items():
        atomic_dirs.remove_orphans(folder / name, version_numbers)


def clean_name(name: str) -> str:
    """Return the normalised name.

    Raises:
        InvalidError: It is empty, too long, or has characters that cannot be seen.

    """
    name = unicodedata.normalize("NFC", name.strip())
    if not name:
        raise InvalidError("Enter a name.", hint="Describe what the rows are about.", param="name")
    if len(name) > NAME_LIMIT or not name.isprintable():
        raise InvalidError(
            f"Use at most {NAME_LIMIT} visible characters on one line.", param="name"
        )
    return name


def clean_filename(filename: str) -> str:
    """Return a file's name for display only: without folders or control characters, shortened."""
    last = PurePosixPath(filename.replace("\\", "/")).name
    printable = "".join(letter if letter.isprintable() else "�" for letter in last)
    return printable[-NAME_LIMIT:]


def available_name(db: Session, name: str, *, is_chosen: bool = True) -> str:
    """Return the name if it is free; if it is taken and was not chosen, a similar one.

    Raises:
        ConflictError: The chosen name is taken.

    """
    names = set(db.exec(select(Dataset.name)))
    if name not in names:
        return name
    alternative = next(
        candidate for i in range(2, len(names) + 3) if (candidate := f"{name} {i}") not in names
    )
    if not is_chosen:
        return alternative
    raise ConflictError(
        f"A dataset named {name} already exists.",
        hint=f"Choose another name, such as {alternative}.",
        param="name",
    )


def _check_unused(db: Session, dataset: Dataset) -> None:
    query = (
        select(Run)
        .join(DatasetVersion, col(DatasetVersion.id) == col(Run.dataset_version_id))
        .where(DatasetVersion.dataset_id == dataset.id, col(Run.status).in_(_STATUSES_IN_USE))
        .order_by(col(Run.id))
    )
    user = db.exec(query).first()
    if user is not None:
        raise ConflictError(
            f"{dataset.name} is used by run {user.id}, {user.name}, which is {user.status}.",
            hint="Wait until it ends, or cancel it.",
        )
