"""Browse the rows of a version one at a time, or search for the next one with certain words."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from studio.db.tables import DatasetVersion
from studio.intake.rows.paging import NumberedRow, Page
from studio.services.datasets import versions
from studio.services.datasets.versions import Part, RowQuery

Direction = Literal["", "first", "back", "on"]


class RowStep(BaseModel):
    """Which row to show, from the query string."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    split: Part = "train"
    row: int = Field(default=1, ge=1, lt=2**53)
    q: str = Field(default="", max_length=200)
    step: Direction = ""
    """Where to go from `row`: to the first match, or to the row before or after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    version: DatasetVersion
    part: Part
    search_text: str
    total: int
    """Number of rows in the part."""
    row_number: int
    """Number of the current row."""
    row: NumberedRow | None = None
    notice: str = ""
    continue_direction: Direction = ""
    """Direction to continue a search that ran out of time; empty if it did not."""


def parse_query(asked: Mapping[str, Any]) -> RowStep:
    """Parse a query string; an invalid one means the first row."""
    try:
        return RowStep.model_validate({name: value for name, value in asked.items() if value != ""})
    except ValidationError:
        return RowStep()


def find_row(folder: Path, version: DatasetVersion, asked: RowStep) -> RowView:
    """Find the row that a step leads to."""
    total = version.train_rows if asked.split == "train" else version.validation_rows
    row_number = min(asked.row, max(1, total))
    view = RowView(
        version=version,
        part=asked.split,
        search_text=asked.q.strip(),
        total=total,
        row_number=row_number,
    )
    if not view.search_text:
        row_number = min(
            max(1, row_number + {"back": -1, "on": 1}.get(asked.step, 0)), max(1, total)
        )
        return replace(view, row_number=row_number, row=_read_row(folder, view, row_number))
    page = _search_rows(folder, view, asked.step)
    if page.rows:
        return replace(view, row_number=page.rows[0].number, row=page.rows[0])
    if page.searched_to is not None:
        return _unfinished_search(view, page.searched_to, asked.step)
    if asked.step in {"back", "on"}:
        notice = (
            f"No row before row {row_number:,} has “{view.search_text}”."
            if asked.step == "back"
            else f"No row after row {row_number:,} has “{view.search_text}”."
        )
        return replace(view, row=_read_row(folder, view, row_number), notice=notice)
    notice = f"No row from row {row_number:,} onward has “{view.search_text}”."
    if asked.step == "first" or row_number == 1:
        notice = f"No row has “{view.search_text}”."
    return replace(view, notice=notice)


def _unfinished_search(view: RowView, looked_to: int, step: Direction) -> RowView:
    further: Direction = "back" if step == "back" else "on"
    progress = f"back to row {looked_to:,}" if step == "back" else f"up to row {looked_to:,}"
    notice = f"No row with “{view.search_text}” {progress} so far."
    return replace(view, row_number=max(1, looked_to), notice=notice, continue_direction=further)


def _read_row(folder: Path, view: RowView, number: int) -> NumberedRow | None:
    row_query = RowQuery(part=view.part, numbers=frozenset({number}))
    return next(iter(versions.load_rows(folder, view.version, row_query).rows), None)


def _search_rows(folder: Path, view: RowView, step: Direction) -> Page:
    row_query = RowQuery(part=view.part, words=view.search_text)
    if step == "back":
        row_query = replace(row_query, before=view.row_number)
    else:
        row_query = replace(
            row_query, after={"first": 0, "on": view.row_number}.get(step, view.row_number - 1)
        )
    return versions.load_rows(folder, view.version, row_query, limit=1)
