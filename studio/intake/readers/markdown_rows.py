"""Rows of Markdown: its sections, begun by headings of the first two levels."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from studio.intake.problems import Code
from studio.intake.raw_rows import Note, Rows
from studio.intake.readers.text_lines import lines
from studio.intake.readers.text_rows import Block

_HEADING = re.compile(rb" {0,3}##?([ \t]|\r?\n?$)")
_UNDERLINE = re.compile(rb" {0,3}(=+|-{2,})[ \t]*\r?\n?$")
_NO_TITLE = re.compile(rb"\s*($|[-*+>#|<`~]|\d+[.)]\s)")
"""What is not made a heading by the line below it: a list's item, a quote, a table, code …"""
_FENCE = re.compile(rb" {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(.*)", re.DOTALL)

_Line = tuple[int, bytes | None]


def rows_in_markdown(file: BinaryIO, limit: int) -> Rows:
    """Yield sections with their headings; a heading without text goes with the section below it."""
    yield Note(Code.BY_HEADING)
    block, said, fence = Block(limit), False, b""
    for before, (number, line), after in _with_neighbours(lines(file, limit)):
        fence, was = _fence(fence, line or b""), fence
        heading = not was and _begins(before, line or b"", after)
        if heading and said:
            yield from block.close()
            said = False
        block.add(number, line)
        said = said or _says(line, heading=heading)
    yield from block.close()


def _with_neighbours(found: Iterable[_Line]) -> Iterator[tuple[bytes, _Line, bytes]]:
    before, now = b"", None
    for line in chain(found, [None]):
        if now is not None:
            yield before, now, (line[1] or b"") if line else b""
            before = now[1] or b""
        now = line


def _begins(before: bytes, line: bytes, after: bytes) -> bool:
    """Whether a line is a heading: marked, or a paragraph of one line that is underlined."""
    if _HEADING.match(line):
        return True
    alone = not before.strip() and not _NO_TITLE.match(line)
    return alone and _UNDERLINE.match(after) is not None


def _says(line: bytes | None, *, heading: bool) -> bool:
    if line is None:
        return True
    return not heading and bool(line.strip()) and not _UNDERLINE.match(line)


def _fence(fence: bytes, line: bytes) -> bytes:
    """Return the marks that a block of code is open with behind this line, or nothing."""
    found = _FENCE.match(line)
    if found is None:
        return fence
    marks, info = found[1], found[2]
    if not fence:
        return bytes(marks)
    closes = marks[:1] == fence[:1] and len(marks) >= len(fence) and not info.strip()
    return b"" if closes else fence
