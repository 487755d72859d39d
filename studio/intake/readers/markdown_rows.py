"""Read Markdown as rows: its sections, started by level 1 and 2 headings."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote, RowStream
from studio.intake.readers.text_lines import read_lines
from studio.intake.readers.text_rows import TextBlock

_HEADING = re.compile(rb" {0,3}##?([ \t]|\r?\n?$)")
_UNDERLINE = re.compile(rb" {0,3}(=+|-{2,})[ \t]*\r?\n?$")
_NO_TITLE = re.compile(rb"\s*($|[-*+>#|<`~]|\d+[.)]\s)")
"""Lines that an underline does not make a heading: list items, quotes, tables, code and so on."""
_FENCE = re.compile(rb" {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(.*)", re.DOTALL)

_Line = tuple[int, bytes | None]


def rows_in_markdown(file: BinaryIO, limit: int) -> RowStream:
    """Yield sections with their headings; a heading without text joins the section below it."""
    yield FileNote(ProblemCode.BY_HEADING)
    block, has_content, fence = TextBlock(limit), False, b""
    for before, (number, line), after in _with_neighbours(read_lines(file, limit)):
        fence, open_before = _open_fence(fence, line or b""), fence
        heading = not open_before and _is_heading(before, line or b"", after)
        if heading and has_content:
            yield from block.flush()
            has_content = False
        block.add(number, line)
        has_content = has_content or _has_text(line, heading=heading)
    yield from block.flush()


def _with_neighbours(lines: Iterable[_Line]) -> Iterator[tuple[bytes, _Line, bytes]]:
    before, current = b"", None
    for line in chain(lines, [None]):
        if current is not None:
            yield before, current, (line[1] or b"") if line else b""
            before = current[1] or b""
        current = line


def _is_heading(before: bytes, line: bytes, after: bytes) -> bool:
    """Tell whether a line is a heading: marked with #, or underlined after a blank line."""
    if _HEADING.match(line):
        return True
    alone = not before.strip() and not _NO_TITLE.match(line)
    return alone and _UNDERLINE.match(after) is not None


def _has_text(line: bytes | None, *, heading: bool) -> bool:
    if line is None:
        return True
    return not heading and bool(line.strip()) and not _UNDERLINE.match(line)


def _open_fence(fence: bytes, line: bytes) -> bytes:
    """Return the fence of the code block that is open after this line, or b""."""
    match = _FENCE.match(line)
    if match is None:
        return fence
    marks, info = match[1], match[2]
    if not fence:
        return bytes(marks)
    closes = marks[:1] == fence[:1] and len(marks) >= len(fence) and not info.strip()
    return b"" if closes else fence
