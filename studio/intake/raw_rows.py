"""What every reader yields: raw rows, unreadable rows, and notes on the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from studio.intake.problems import ProblemCode, format_place

AssignedSplit = Literal["train", "validation", "aside"]
"""The split that the name of a row's file assigns it to; "aside" rows are left out."""


@dataclass(frozen=True, slots=True)
class RawRow:
    number: int
    """The line where a format has lines (the first line of a multi-line row), else the row, counted
    from 1. Numbers continue across the files of an archive, so that they are unique."""
    values: dict[str, Any]
    member: str = ""
    """The file in an archive, if several are read."""
    member_offset: int = 0
    """Subtract this from `number` to get the place in that file."""
    split: AssignedSplit = "train"

    @property
    def place(self) -> str:
        """The place as the user finds it."""
        return format_place(self.number, self.member_offset, self.member)


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that could not be read."""

    number: int
    code: ProblemCode
    detail: str = ""
    member: str = ""
    member_offset: int = 0

    @property
    def place(self) -> str:
        """The place as the user finds it."""
        return format_place(self.number, self.member_offset, self.member)


@dataclass(frozen=True, slots=True)
class FileNote:
    """A note on how the file is read. No row is lost by it."""

    code: ProblemCode
    detail: str = ""


RowStream = Iterator[RawRow | UnreadableRow | FileNote]
