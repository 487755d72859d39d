"""Checks of tasks: whether the columns that graders read have values in all rows."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from studio.intake.quality.answer_facts import shorten
from studio.intake.quality.findings import MAX_LISTED_ROWS, Finding
from studio.intake.rows.pipeline import Part

REPEATED_MESSAGE = "The same prompts are in several rows, with different columns for graders"
OVERLAP_MESSAGE = (
    "Validation rows have the same prompts as training rows; validation will look better than it is"
)


@dataclass(slots=True)
class ColumnCounter:
    """Counts the filled columns of each task, in two bytes per row."""

    _filled: "array[int]" = field(default_factory=lambda: array("H"))
    """How many columns of each row are filled."""
    _rows_by_column: Counter[str] = field(default_factory=Counter)
    """In how many rows each column is filled."""

    @property
    def rows(self) -> int:
        return len(self._filled)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count the columns of a row, if it is a task."""
        if "item" not in row:
            return
        columns = [column for column, value in row["item"].items() if not _is_empty(value)]
        self._filled.append(len(columns))
        self._rows_by_column.update(columns)

    def findings(self, part: Part) -> Iterator[Finding]:
        """Report columns that only some rows fill."""
        partly = [column for column, rows in self._rows_by_column.items() if rows < self.rows]
        if not partly:
            return
        count, columns = len(self._rows_by_column), shorten(partly)
        rows = [number for number, filled in enumerate(self._filled, 1) if filled < count]
        yield Finding(
            code="empty_columns",
            message=f"Graders that read {columns} cannot score these rows: they have no value "
            "there",
            count=len(rows),
            rows=rows[:MAX_LISTED_ROWS],
            part=part,
        )


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
