"""What every reader yields: rows as they stand in the file, and places where none could be read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from studio.intake.problems import Code


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    """Its line in JSON lines and CSV, else its place, counted from one."""
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unread:
    number: int
    code: Code
    detail: str = ""


Rows = Iterator[Row | Unread]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a file may cost: a row beyond its limit is left out, a file beyond its own refused."""

    row_bytes: int = 10 * 2**20
    total_bytes: int = 4 * 2**30
    """All conversations together: a small file can unpack to a very large one."""
