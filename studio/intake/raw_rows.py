"""What every reader yields: rows as they stand in the file, and what there is to say of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from studio.intake.problems import Code, place

Side = Literal["train", "validation", "aside"]
"""What the file that a row is in is for, where it says so."""


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    """Its line where a format has lines (a text's is its first), else its place, from one. It runs
    on through the files of an archive, so that no two rows have the same."""
    values: dict[str, Any]
    member: str = ""
    """Which file of an archive it is in, where several are read."""
    before: int = 0
    """What is to be taken off the number for the place in that file."""
    side: Side = "train"

    @property
    def place(self) -> str:
        """Where a person finds it."""
        return place(self.number, self.before, self.member)


@dataclass(frozen=True, slots=True)
class Unread:
    """A place where a row was left out."""

    number: int
    code: Code
    detail: str = ""
    member: str = ""
    before: int = 0

    @property
    def place(self) -> str:
        """Where a person finds it."""
        return place(self.number, self.before, self.member)


@dataclass(frozen=True, slots=True)
class Note:
    """How the file is read, where that is not plain. No row is lost by it."""

    code: Code
    detail: str = ""


Rows = Iterator[Row | Unread | Note]
