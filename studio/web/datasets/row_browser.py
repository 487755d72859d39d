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
    words: str
    total: int
    """Number of rows in the part."""
    number: int
    """Number of the current row."""
    row: NumberedRow | None = None
    notice: str = ""
    further: Direction = ""
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
    at = min(asked.row, max(1, total))
    here = RowView(version=version, part=asked.split, words=asked.q.strip(), total=total, number=at)
    if not here.words:
        at = min(max(1, at + {"back": -1, "on": 1}.get(asked.step, 0)), max(1, total))
        return replace(here, number=at, row=_read_row(folder, here, at))
    page = _search_rows(folder, here, asked.step)
    if page.rows:
        return replace(here, number=page.rows[0].number, row=page.rows[0])
    if page.looked_to is not None:
        return _unfinished_search(here, page.looked_to, asked.step)
    if asked.step in {"back", "on"}:
        told = (
            f"No row before row {at:,} has “{here.words}”."
            if asked.step == "back"
            else f"No row after row {at:,} has “{here.words}”."
        )
        return replace(here, row=_read_row(folder, here, at), notice=told)
    told = f"No row from row {at:,} onward has “{here.words}”."
    if asked.step == "first" or at == 1:
        told = f"No row has “{here.words}”."
    return replace(here, notice=told)


def _unfinished_search(here: RowView, looked_to: int, step: Direction) -> RowView:
    further: Direction = "back" if step == "back" else "on"
    to = f"back to row {looked_to:,}" if step == "back" else f"up to row {looked_to:,}"
    told = f"No row with “{here.words}” {to} so far."
    return replace(here, number=max(1, looked_to), notice=told, further=further)


def _read_row(folder: Path, here: RowView, number: int) -> NumberedRow | None:
    which = RowQuery(part=here.part, numbers=frozenset({number}))
    return next(iter(versions.load_rows(folder, here.version, which).rows), None)


def _search_rows(folder: Path, here: RowView, step: Direction) -> Page:
    which = RowQuery(part=here.part, words=here.words)
    if step == "back":
        which = replace(which, before=here.number)
    else:
        which = replace(which, after={"first": 0, "on": here.number}.get(step, here.number - 1))
    return versions.load_rows(folder, here.version, which, limit=1)
