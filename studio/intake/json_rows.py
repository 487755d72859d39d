"""Rows of JSON: one a line, or in one list, which is cut into rows without being loaded."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from studio.intake.kinds import list_start
from studio.intake.lines import lines, text, too_long
from studio.intake.problems import Code
from studio.intake.rows import Row, Rows, Unread

_CHUNK = 2**20
_OPEN = "A quote or a bracket may have been left open there."
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)
"""A whole string, or a mark outside of strings; a lone quote opens a string that goes on."""
_STRING_END = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)


class _NotFiniteError(ValueError):
    pass


def rows_on_lines(path: Path, limit: int) -> Rows:
    for number, line in lines(path, limit):
        if line is None:
            yield Unread(number, Code.TOO_LONG, f"the limit is {limit / 2**20:.3g} MB")
        elif line.strip():
            yield _row(number, text(line, f"line {number}"))


def rows_in_list(path: Path, limit: int) -> Rows:
    """Yield the rows of a list.

    Raises:
        InvalidError: a row is too long, so that it is unknown where the next begins.

    """
    for number, piece in _Cutter(limit).pieces(path):
        if isinstance(piece, Code):
            yield Unread(number, piece)
        else:
            yield _row(number, text(piece, f"row {number}"))


def _row(number: int, written: str) -> Row | Unread:
    try:
        values = json.loads(written, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return Unread(number, Code.NOT_JSON, f"{error.msg}, character {error.pos + 1}")
    except _NotFiniteError:
        return Unread(number, Code.NOT_FINITE)
    except RecursionError:
        return Unread(number, Code.TOO_DEEP)
    except ValueError:
        return Unread(number, Code.HUGE_NUMBER)
    return Row(number, values) if isinstance(values, dict) else Unread(number, Code.NOT_A_ROW)


def _refuse(constant: str) -> NoReturn:
    raise _NotFiniteError(constant)


class _Cutter:
    """Cuts the text of a JSON list into its rows, seeing only quotes, brackets and commas."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.number = 0
        self.depth = 0
        self.in_string = False
        self.ended = False
        self.kept = bytearray()
        self.behind = b""

    def pieces(self, path: Path) -> Iterator[tuple[int, bytes | Code]]:
        """Yield each row's own text, or what is wrong with it, with the row's number."""
        with path.open("rb") as file:
            file.seek(list_start(path))
            rest = b""
            while not self.ended and (read := file.read(_CHUNK)):
                chunk = rest + read
                # An escape is never cut in two: its backslash waits for the next chunk.
                rest = b"\\" if _ends_in_escape(chunk) else b""
                yield from self._cut(chunk[: len(chunk) - len(rest)])
            behind = self.behind + file.read(_CHUNK)
        if not self.ended:
            yield self.number + 1, Code.CUT_OFF
        elif behind.lstrip().startswith((b"[", b"{")):
            # Only another list or row is a loss; what wraps the list may say more of itself.
            yield self.number + 1, Code.AFTER_END

    def _cut(self, chunk: bytes) -> Iterator[tuple[int, bytes | Code]]:
        start = 0
        for mark, place in self._marks(chunk):
            if mark in b"[{":
                self.depth += 1
            elif mark in b"]}" and self.depth:
                self.depth -= 1
            elif self.depth == 0:
                yield from self._close(chunk[start:place], mark)
                start = place + 1
                if mark != b",":
                    self.ended, self.behind = True, chunk[start:]
                    return
        self._keep(chunk[start:])

    def _marks(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        start = 0
        if self.in_string:
            end = _STRING_END.match(chunk)
            if end is None:
                return
            self.in_string, start = False, end.end()
        for found in _MARK.finditer(chunk, start):
            mark = found.group()
            if mark == b'"':
                self.in_string = True
                return
            if len(mark) == 1:
                yield mark, found.start()

    def _keep(self, piece: bytes) -> None:
        self.kept += piece
        if len(self.kept) > self.limit:
            raise too_long(f"Row {self.number + 1}", self.limit, _OPEN)

    def _close(self, piece: bytes, mark: bytes) -> Iterator[tuple[int, bytes]]:
        self._keep(piece)
        row = bytes(self.kept).strip()
        self.kept.clear()
        # Nothing between two commas is a fault; nothing before the end is a comma too many.
        if row or mark == b",":
            self.number += 1
            yield self.number, row


def _ends_in_escape(chunk: bytes) -> bool:
    return (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 == 1
