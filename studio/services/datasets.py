"""Data sets: bring, find, look into, rename, delete.

Every data set is kept as it came and as conversations, one a line:

    <id>/original.csv  train.jsonl  [validation.jsonl]
"""

import difflib
import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.states import LIVE, RunStatus
from studio.db.tables import Dataset, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.intake.convert import Source, convert
from studio.intake.formats import stem
from studio.intake.pages import Page, read_page
from studio.intake.rows import Limits
from studio.services import folders
from studio.starter import rows as starter

Split = Literal["train", "validation"]

STARTER = "starter"
NAME_LIMIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that has arrived whole, and what its owner says of it."""

    path: Path
    filename: str
    name: str = ""
    """Nothing means: as the file is called."""
    validation: Path | None = None
    validation_filename: str = ""
    limits: Limits = field(default_factory=Limits)


def add(db: Session, folder: Path, upload: Upload) -> Dataset:
    """Keep an uploaded file and every usable row of it. The file is taken away from its place.

    Raises:
        ConflictError: the name is taken.
        DiskFullError: there is no room for it; nothing is kept.
        InvalidError: nothing can be learnt from the file.
        TooLargeError: it unpacks to more than may be kept.

    """
    name = clean_name(upload.name or stem(clean_filename(upload.filename)))
    with folders.staged(folder) as stage:
        source = Source(path=upload.path, filename=upload.filename)
        held = _validation(upload)
        converted = convert(source, None, stage, upload.limits, validation=held)
        dataset = Dataset(
            name=name,
            filename=clean_filename(upload.filename),
            format=converted.format,
            shape=converted.mapping.shape,
            mapping={role: ", ".join(named) for role, named in converted.mapping.roles.items()},
            bytes=upload.path.stat().st_size,
            sha256=_sha256(upload.path),
            train_rows=converted.rows,
            validation_rows=converted.validation_rows,
            problems=[asdict(problem) | {"blocking": False} for problem in converted.problems],
        )
        upload.path.replace(stage / f"original{PurePosixPath(upload.filename).suffix.lower()}")
        return _insert(db, folder, stage, dataset)


def add_starter(db: Session, folder: Path) -> Dataset:
    """Return the studio's own data set, made the first time it is asked for."""
    found = db.exec(select(Dataset).where(Dataset.name == STARTER)).first()
    if found is not None:
        return found
    with folders.staged(folder) as stage:
        starter.write(stage)
        train, validation = stage / "train.jsonl", stage / "validation.jsonl"
        dataset = Dataset(
            name=STARTER,
            filename=train.name,
            format="jsonl",
            shape="messages",
            mapping={"messages": "messages"},
            bytes=train.stat().st_size,
            sha256=_sha256(train),
            train_rows=_count(train),
            validation_rows=_count(validation),
        )
        return _insert(db, folder, stage, dataset)


def get(db: Session, dataset_id: int) -> Dataset:
    dataset = db.get(Dataset, dataset_id)
    if dataset is None:
        raise NotFoundError(f"There is no data set {dataset_id}.", hint="It may have been deleted.")
    return dataset


def newest(db: Session, *, limit: int = 1000, before: int | None = None) -> Sequence[Dataset]:
    query = select(Dataset).order_by(col(Dataset.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Dataset.id) < before)
    return db.exec(query).all()


def require(db: Session, name: str) -> Dataset:
    """Return the data set that a recipe names, by its name or its id.

    Raises:
        InvalidError: there is none.

    """
    named = db.exec(select(Dataset).where(Dataset.name == name)).first()
    if named is None and name.isdecimal() and len(name) < len(str(2**63)):
        named = db.get(Dataset, int(name))
    if named is None:
        known = db.exec(select(Dataset.name).order_by(Dataset.name)).all()
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
        hint = f"Did you mean {' or '.join(near)}?" if near else "Bring one on the data sets page."
        raise InvalidError(f"There is no data set called {name}.", hint=hint, param="dataset")
    return named


def files(folder: Path, dataset: Dataset) -> tuple[Path, Path | None]:
    """Return where the rows to train on are, and those to validate on if it brought any."""
    home = folder / str(dataset.id)
    return home / "train.jsonl", home / "validation.jsonl" if dataset.validation_rows else None


def rows(
    folder: Path, dataset: Dataset, split: Split = "train", *, after: int = 0, limit: int = 50
) -> Page:
    """Return the conversations behind number `after`."""
    train, validation = files(folder, dataset)
    path = train if split == "train" else validation
    if path is None:
        return Page(rows=[], has_more=False)
    return read_page(path, after=after, limit=limit)


def rename(db: Session, dataset_id: int, name: str) -> Dataset:
    """Give a data set another name.

    Raises:
        ConflictError: the name is taken, or a run is about to look for the old one.

    """
    dataset = get(db, dataset_id)
    name = clean_name(name)
    if name != dataset.name:
        _check_unused(db, dataset)
        _check_free(db, name)
        dataset.name = name
    return dataset


def delete(db: Session, folder: Path, dataset_id: int) -> None:
    """Delete a data set and its files. Runs that were trained on it stay.

    Raises:
        ConflictError: a run that waits or trains needs it.

    """
    dataset = get(db, dataset_id)
    _check_unused(db, dataset)
    db.delete(dataset)
    folders.discard(db, folder / str(dataset_id))


def tidy(db: Session, folder: Path) -> None:
    """Take away what uploads and deletions left when the studio was killed in the middle."""
    folders.sweep(folder, {str(dataset_id) for dataset_id in db.exec(select(Dataset.id))})


def clean_name(name: str) -> str:
    """Return the name as it is kept.

    Raises:
        InvalidError: empty, too long, or with characters that cannot be seen.

    """
    name = unicodedata.normalize("NFC", name.strip())
    if not name:
        raise InvalidError("A name is needed.", hint="Say what the rows are about.", param="name")
    if len(name) > NAME_LIMIT or not name.isprintable():
        raise InvalidError(
            f"A name has at most {NAME_LIMIT} visible characters on one line.", param="name"
        )
    return name


def clean_filename(filename: str) -> str:
    """Return a file's name to show, never to open: without folders, control marks or excess."""
    last = PurePosixPath(filename.replace("\\", "/")).name
    shown = "".join(letter if letter.isprintable() else "�" for letter in last)
    return shown[-NAME_LIMIT:]


def _validation(upload: Upload) -> Source | None:
    if upload.validation is None:
        return None
    filename = upload.validation_filename or upload.filename
    return Source(path=upload.validation, filename=filename)


def _insert(db: Session, folder: Path, stage: Path, dataset: Dataset) -> Dataset:
    folders.sync(stage)
    # The first statement takes the database's write lock: all slow work is done by now.
    _check_free(db, dataset.name)
    db.add(dataset)
    db.flush()
    folders.place(stage, folder / str(dataset.id))
    return dataset


def _check_free(db: Session, name: str) -> None:
    names = set(db.exec(select(Dataset.name)))
    if name not in names:
        return
    free = next(other for i in range(2, len(names) + 3) if (other := f"{name} {i}") not in names)
    raise ConflictError(
        f"There is a data set called {name} already.",
        hint=f"Choose another name, such as {free}.",
        param="name",
    )


def _check_unused(db: Session, dataset: Dataset) -> None:
    waiting = (
        select(Run).where(col(Run.status).in_({*LIVE, RunStatus.QUEUED})).order_by(col(Run.id))
    )
    names = {dataset.name, str(dataset.id)}
    users = [run for run in db.exec(waiting) if run.recipe.dataset in names]
    if users:
        raise ConflictError(
            f"{dataset.name} is needed by run {users[0].id}, {users[0].name}, "
            f"which is {users[0].status}.",
            hint="Wait for it to end, or cancel it.",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
