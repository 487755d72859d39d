"""How a model will see a row of a data set: the row is found here, the desk shows it."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.tables import Dataset, DatasetVersion
from studio.errors import NotFoundError
from studio.intake.rows import line_index
from studio.protocols.tokenizer_service import (
    PackingWindow,
    TemplateSource,
    TokenizerRequest,
    packing_window,
)
from studio.services.datasets import versions
from studio.services.datasets.versions import Part
from studio.services.models import models


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPosition:
    """Where a row stands."""

    name: str
    """Of the data set."""
    version: DatasetVersion
    part: Part
    number: int
    """Counted from one."""
    rows: int
    """How many there are in that part."""


def nearest_row(
    db: Session, dataset: Dataset, part: Part, number: int, version_number: int | None = None
) -> RowPosition:
    """Return a row's place, or that of the nearest row there is.

    Without a version's number it stands in what new runs learn from.

    Raises:
        NotFoundError: there are no rows, or no such version.

    """
    if version_number is None:
        version = versions.current(db, dataset)
    else:
        version = versions.get(db, dataset.id or 0, version_number)
    counts = {"train": version.train_rows, "validation": version.validation_rows} if version else {}
    rows = counts.get(part, 0)
    if version is None or not rows:
        raise NotFoundError(
            f"{dataset.name} has no {part} rows.", hint="Look at the other part, or another."
        )
    number = min(max(1, number), rows)
    return RowPosition(name=dataset.name, version=version, part=part, number=number, rows=rows)


def exact_row(
    db: Session, dataset: Dataset, part: Part, number: int, version_number: int | None = None
) -> RowPosition:
    """Return a row's place.

    Raises:
        NotFoundError: there is no such row, or no such version.

    """
    found = nearest_row(db, dataset, part, number, version_number)
    if found.number != number:
        raise NotFoundError(
            f"{dataset.name} has no row {number}.", hint=f"It has {found.rows:,} {part} rows."
        )
    return found


def random_row(
    db: Session, dataset: Dataset, part: Part, version_number: int | None = None
) -> RowPosition:
    """Return the place of some row.

    Raises:
        NotFoundError: there are no rows, or no such version.

    """
    rows = nearest_row(db, dataset, part, 1, version_number).rows
    return nearest_row(db, dataset, part, 1 + secrets.randbelow(rows), version_number)


def read_row(folder: Path, where: RowPosition) -> dict[str, Any]:
    """Return a row as it stands in its file.

    Raises:
        NotFoundError: it is gone.

    """
    train, validation = versions.row_files(folder, where.version)
    path = train if where.part == "train" else validation
    assert path is not None  # noqa: S101 -- a part without rows has no places
    try:
        return line_index.read_row(path, where.number)
    except (OSError, LookupError) as error:
        raise NotFoundError(
            f"Row {where.number} of {where.name} is gone.", hint="Import the data again."
        ) from error


def tokens_request(
    db: Session, model: str, row: dict[str, Any], *, max_length: int, chat_template: TemplateSource
) -> TokenizerRequest:
    """Return what to ask the desk of a row, for a model by the name that recipes use.

    Raises:
        InvalidError: there is no such model.

    """
    return TokenizerRequest(
        kind="tokens",
        model=models.require(db, model),
        row=row,
        max_length=max_length,
        chat_template=chat_template,
    )


def with_packing_window(
    asked: TokenizerRequest, folder: Path, where: RowPosition, share: float, seed: int
) -> TokenizerRequest:
    """Ask with which rows a row shares its example, too; rows to measure by do not."""
    if where.part != "train":
        return asked
    path, validation = versions.row_files(folder, where.version)
    window = PackingWindow(
        path=str(path),
        start=line_index.row_offset(path, packing_window(where.number).start),
        rows=where.rows,
        judged=where.version.kind == "judged",
        share=0.0 if validation else share,
        seed=seed,
    )
    return asked.model_copy(update={"number": where.number, "window": window})
