"""Which encoding a text is in, told by its beginning, and any of them read as UTF-8."""

import codecs
import io
from collections.abc import Iterator
from functools import partial
from typing import Literal

from studio.intake.signatures import BOM
from studio.intake.unpacking import PIECE, joined

Encoding = Literal["utf-8", "utf-16-le", "utf-16-be", "cp1252"]

_MARKS: tuple[tuple[bytes, Encoding], ...] = (
    (BOM, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CUT = 3
"""So many bytes of a character may be missing at the end of what was looked at."""


def encoding(head: bytes, *, windows: bool) -> Encoding:
    """Return the encoding of a text that begins so; Windows' own is only considered if allowed."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    return "cp1252" if windows and _is_windows(head) else "utf-8"


def as_utf8(file: io.BufferedReader, name: Encoding) -> io.BufferedReader:
    """Return a text as UTF-8 without a mark. What is no character stays what no UTF-8 can be."""
    mark = next((mark for mark, named in _MARKS if named == name), b"")
    if mark and file.peek(len(mark)).startswith(mark):
        file.read(len(mark))
    return file if name == "utf-8" else joined(_recoded(file, name))


def with_newlines(file: io.BufferedReader, head: bytes) -> io.BufferedReader:
    """Return a text with its lines ended as everywhere, if they end as on old Macintoshes."""
    beginning = head_as_utf8(head)
    # What stands last may be the first half of another ending.
    if b"\n" in beginning or b"\r" not in beginning[:-1]:
        return file
    pieces = iter(partial(file.read, PIECE), b"")
    return joined(piece.replace(b"\r", b"\n") for piece in pieces)


def head_as_utf8(head: bytes) -> bytes:
    """Return the beginning of a file as UTF-8 if it is marked as UTF-16, else as it is."""
    name = encoding(head, windows=False)
    return head if name == "utf-8" else head[2:].decode(name, "replace").encode()


def _recoded(file: io.BufferedReader, name: Encoding) -> Iterator[bytes]:
    # Both handlers pass on what is no character, as half of a surrogate pair: its row is told.
    errors = "surrogateescape" if name == "cp1252" else "surrogatepass"
    decoder = codecs.getincrementaldecoder(name)(errors)
    while read := file.read(PIECE):
        yield decoder.decode(read).encode("utf-8", "surrogatepass")
    if decoder.getstate()[0]:
        yield b"\xff"


def _is_windows(head: bytes) -> bool:
    good, bad = _counted(head)
    if bad <= good:
        return False
    try:
        head.decode("cp1252")
    except UnicodeDecodeError:
        return False
    return True


def _counted(head: bytes) -> tuple[int, int]:
    """Return how many characters beyond ASCII are whole in UTF-8, and how many bytes are none."""
    text = head.decode("utf-8", "surrogateescape")
    ends = text[-_CUT:]
    cut = sum("\udc80" <= letter <= "\udcff" for letter in ends)
    bad = sum("\udc80" <= letter <= "\udcff" for letter in text)
    beyond = sum(letter > "\x7f" for letter in text)
    # A character that was cut in two is no fault; but three bytes may well be all a file has.
    whole = len(head) >= PIECE
    return beyond - bad, bad - (cut if whole else 0)
