"""Filter the rows of a file before they are converted."""

from collections.abc import Callable
from typing import Literal

from studio.intake.mapping import Condition, FilterOp, Mapping
from studio.intake.raw_rows import RawRow
from studio.intake.row_formats.cell_text import to_text

Part = Literal["train", "validation"]

_OPERATORS: dict[FilterOp, Callable[[str, str], bool]] = {
    "is": lambda found, value: found == value,
    "is_not": lambda found, value: found != value,
    "contains": lambda found, value: value in found,
    "lacks": lambda found, value: value not in found,
    "longer_than": lambda found, value: len(found) > int(value),
    "shorter_than": lambda found, value: len(found) < int(value),
}


class RowFilter:
    """The row filters of a mapping."""

    def __init__(self, mapping: Mapping) -> None:
        self._keep = mapping.keep
        self._excluded = frozenset(mapping.exclude)
        self._kind = mapping.split.kind
        self._column = mapping.split.column
        self._parts: dict[str, Part] = {
            **{word.strip().lower(): "validation" for word in mapping.split.validation},
            **{word.strip().lower(): "train" for word in mapping.split.train},
        }

    def exclusion_reason(self, row: RawRow) -> "ExclusionReason | None":
        """Return why the row is excluded, or None."""
        if row.number in self._excluded:
            return "excluded"
        if not all(_matches(condition, row) for condition in self._keep):
            return "filtered"
        return "other_part" if self._is_in_other_part(row) else None

    def assigned_part(self, row: RawRow) -> Part | None:
        """Return the part given by the split column or the file, or None."""
        if self._kind == "file":
            return None if row.split == "aside" else row.split
        if self._kind != "column":
            return None
        return self._parts.get(to_text(row.values.get(self._column)).strip().lower())

    def _is_in_other_part(self, row: RawRow) -> bool:
        if self._kind == "dataset":
            return row.split != "train"
        return self._kind in {"file", "column"} and self.assigned_part(row) is None


ExclusionReason = Literal["excluded", "filtered", "other_part", "media", "duplicate", "not_drawn"]

EXCLUSION_REASONS: dict[ExclusionReason, str] = {
    "excluded": "Excluded by row number",
    "filtered": "Excluded by a filter",
    "other_part": "Its split is neither training nor validation",
    "media": "Contains an image, audio, video or file",
    "duplicate": "Duplicate of an earlier row",
    "not_drawn": "Not in the sample",
}
"""Why a usable row is excluded: by choice, not because of a problem."""


def _matches(condition: Condition, row: RawRow) -> bool:
    return _OPERATORS[condition.op](to_text(row.values.get(condition.column)), condition.value)
