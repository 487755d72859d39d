"""What every reader yields: rows as they stand in the file, and what there is to say of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from studio.intake.problems import Code


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    """Its line where a format has lines (a text's is its first), else its place, from one."""
    values: dict[str, Any]
    member: str = ""
    """Which file of an archive it is in, where several are read; numbers begin anew in each."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A place where a row was left out."""

    number: int
    code: Code
    detail: str = ""
    member: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """How the file is read, where that is not plain. No row is lost by it."""

    code: Code
    detail: str = ""


Rows = Iterator[Row | Unread | Note]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a file may cost: a row beyond its limit is left out, a file beyond its own refused."""

    row_bytes: int = 10 * 2**20
    total_bytes: int = 4 * 2**30
    """All that is unpacked, and all conversations: a small file can become a very large one."""
