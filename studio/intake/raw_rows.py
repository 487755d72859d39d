"""What every reader yields: rows as they stand in the file, and what there is to say of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from studio.intake.problems import ProblemCode, format_place

AssignedSplit = Literal["train", "validation", "aside"]
"""What the file that a row is in is for, where it says so."""


@dataclass(frozen=True, slots=True)
class RawRow:
    number: int
    """Its line where a format has lines (a text's is its first), else its place, from one. It runs
    on through the files of an archive, so that no two rows have the same."""
    values: dict[str, Any]
    member: str = ""
    """Which file of an archive it is in, where several are read."""
    member_offset: int = 0
    """What is to be taken off the number for the place in that file."""
    split: AssignedSplit = "train"

    @property
    def place(self) -> str:
        """Where a person finds it."""
        return format_place(self.number, self.member_offset, self.member)


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A place where a row was left out."""

    number: int
    code: ProblemCode
    detail: str = ""
    member: str = ""
    member_offset: int = 0

    @property
    def place(self) -> str:
        """Where a person finds it."""
        return format_place(self.number, self.member_offset, self.member)


@dataclass(frozen=True, slots=True)
class FileNote:
    """How the file is read, where that is not plain. No row is lost by it."""

    code: ProblemCode
    detail: str = ""


RowStream = Iterator[RawRow | UnreadableRow | FileNote]
