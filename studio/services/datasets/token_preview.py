"""Read the rows of a dataset whose tokens the tokenizer service shows."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.tables import Dataset, DatasetVersion
from studio.errors import NotFoundError
from studio.intake.rows import paging
from studio.methods import get_method
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
    """The position of a row."""

    name: str
    """The name of the dataset."""
    version: DatasetVersion
    part: Part
    number: int
    """Counted from 1."""
    rows: int
    """Number of rows in that part."""


def nearest_row(
    db: Session, dataset: Dataset, part: Part, number: int, version_number: int | None = None
) -> RowPosition:
    """Return the position of a row, or of the nearest one if the number is out of range.

    Without a version number, use the current version.

    Raises:
        NotFoundError: There are no rows, or no such version.

    """
    if version_number is None:
        version = versions.current(db, dataset)
    else:
        version = versions.get(db, dataset.id or 0, version_number)
    counts = {"train": version.train_rows, "validation": version.validation_rows} if version else {}
    rows = counts.get(part, 0)
    if version is None or not rows:
        raise NotFoundError(
            f"{dataset.name} has no {part} rows.", hint="Choose the other part or another dataset."
        )
    number = min(max(1, number), rows)
    return RowPosition(name=dataset.name, version=version, part=part, number=number, rows=rows)


def exact_row(
    db: Session, dataset: Dataset, part: Part, number: int, version_number: int | None = None
) -> RowPosition:
    """Return the position of a row.

    Raises:
        NotFoundError: There is no such row, or no such version.

    """
    position = nearest_row(db, dataset, part, number, version_number)
    if position.number != number:
        raise NotFoundError(
            f"{dataset.name} has no row {number}.", hint=f"It has {position.rows:,} {part} rows."
        )
    return position


def random_row(
    db: Session, dataset: Dataset, part: Part, version_number: int | None = None
) -> RowPosition:
    """Return the position of a random row.

    Raises:
        NotFoundError: There are no rows, or no such version.

    """
    rows = nearest_row(db, dataset, part, 1, version_number).rows
    return nearest_row(db, dataset, part, 1 + secrets.randbelow(rows), version_number)


def read_row(folder: Path, where: RowPosition) -> dict[str, Any]:
    """Return a row as it is in its file.

    Raises:
        NotFoundError: The row is gone.

    """
    train, validation = versions.row_files(folder, where.version)
    path = train if where.part == "train" else validation
    assert path is not None  # noqa: S101 -- only parts with rows have positions
    try:
        return paging.read_row(path, where.number)
    except (OSError, LookupError) as error:
        raise NotFoundError(
            f"Row {where.number} of {where.name} is gone.", hint="Import the data again."
        ) from error


def tokens_request(
    db: Session,
    model: str,
    row: dict[str, Any],
    *,
    max_length: int,
    chat_template: TemplateSource,
    method: str = "",
) -> TokenizerRequest:
    """Return a tokenizer request for a row and a model by the name that recipes use.

    Without a method, both answers of a pair are shown, and answers that are rated bad.

    Raises:
        InvalidError: There is no such model.
        NotFoundError: There is no such method.

    """
    return TokenizerRequest(
        kind="tokens",
        model=models.require(db, model),
        row=row,
        max_length=max_length,
        chat_template="none" if models.reads_plain_text(db, model) else chat_template,
        with_bad=not method or get_method(method).reads_bad_answers,
    )


def with_packing_window(
    request: TokenizerRequest, folder: Path, where: RowPosition, share: float, seed: int
) -> TokenizerRequest:
    """Ask, too, which rows are packed with a row; validation rows are not packed."""
    if where.part != "train":
        return request
    path, validation = versions.row_files(folder, where.version)
    window = PackingWindow(
        path=str(path),
        start=paging.row_offset(path, packing_window(where.number).start),
        rows=where.rows,
        judged=where.version.kind == "judged",
        share=0.0 if validation else share,
        seed=seed,
    )
    # Only methods that learn from good answers pack them.
    return request.model_copy(update={"number": where.number, "window": window, "with_bad": False})
