"""What a file is: told by its first bytes, and held against what its name says."""

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Literal

from studio.errors import InvalidError

Format = Literal["jsonl", "json", "csv", "parquet"]

ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a sound, film or image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive, or a document of Word or Excel"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstandard archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"\x80\x04", "a Python pickle"),
    (b"\xff\xfe\x00\x00", "text in UTF-32"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
)
_HTML = re.compile(rb"<(!doctype|html|head|body|svg|!--)", re.IGNORECASE)
_XML = re.compile(rb"<\?xml", re.IGNORECASE)
_WRAPPED = re.compile(rb'\s*\{\s*"data"\s*:\s*\[')
_BOM = b"\xef\xbb\xbf"
_HEAD = 65536
_TAR = slice(257, 262)


def recognise(path: Path, filename: str) -> Format:
    """Return the format of a file.

    Raises:
        InvalidError: it is empty, of a kind we do not read, or not what its name says.

    """
    head = _head(path)
    if not head.strip() and path.stat().st_size <= _HEAD:
        raise InvalidError("The file is empty.", hint="Choose a file with rows.", param="file")
    seen = _seen(head)
    ending = PurePosixPath(filename).suffix.lower()
    if ending not in ENDINGS:
        raise _unreadable(ending, seen)
    named = ENDINGS[ending]
    if not _FITS[named](seen, head):
        raise _mismatch(ending, seen)
    if named in {"csv", "parquet"}:
        return named
    # Both endings are used for both: a list, or a row on each line.
    return "json" if head.lstrip().startswith(b"[") or _WRAPPED.match(head) else "jsonl"


def list_start(path: Path) -> int:
    """Return where in a JSON file the first row of its list begins."""
    head = _head(path)
    wrapped = _WRAPPED.match(head)
    return text_start(path) + (wrapped.end() if wrapped else head.index(b"[") + 1)


def text_start(path: Path) -> int:
    """Return where the text of a file begins: behind the byte order mark, if it has one."""
    with path.open("rb") as file:
        return len(_BOM) if file.read(len(_BOM)) == _BOM else 0


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD).removeprefix(_BOM)


def _seen(head: bytes) -> str:
    """Name what the first bytes are, in words."""
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    text = head.lstrip()
    if head[_TAR] == b"ustar":
        return "a tar archive"
    if b"\0" in head:
        return "not text: it may be UTF-16, or no data set at all"
    if _HTML.match(text):
        return "an HTML page"
    if _XML.match(text):
        return "XML"
    return "JSON" if text.startswith((b"{", b"[")) else "text"


def _holds_json(seen: str, head: bytes) -> bool:
    # A broken first line does not make it another kind of file; a row is told by its brace.
    return seen == "JSON" or (seen == "text" and (b"\n{" in head or not head.strip()))


_FITS: dict[Format, Callable[[str, bytes], bool]] = {
    "jsonl": _holds_json,
    "json": _holds_json,
    "csv": lambda seen, _head: seen == "text",
    "parquet": lambda seen, _head: seen == "a Parquet file",
}

_HINTS = {
    "a Parquet file": "Rename it so that it ends in .parquet.",
    "JSON": "Rename it so that it ends in .json or .jsonl.",
    "an HTML page": "Was a web page saved in place of the file? Download the file itself.",
    "text in UTF-16": "Save it as UTF-8 and upload it again.",
    "text in UTF-32": "Save it as UTF-8 and upload it again.",
}
_TAKEN = "JSON lines (.jsonl), JSON, CSV and Parquet files can be read."


def _mismatch(ending: str, seen: str) -> InvalidError:
    named = f"The name ends in {ending}, but the file is {seen}"
    if seen == "text":
        named += " that is not JSON" if ending.startswith((".json", ".nd")) else ""
    if "archive" in seen:
        return InvalidError(f"{named}.", hint="Unpack it first.", param="file")
    return InvalidError(f"{named}.", hint=_HINTS.get(seen, _TAKEN), param="file")


def _unreadable(ending: str, seen: str) -> InvalidError:
    if ending in {".txt", ".md"} and seen == "text":
        return InvalidError(
            "This is running text, without questions and answers.",
            hint=f"This version learns answers to questions. {_TAKEN}",
            param="file",
        )
    named = f"a file ending in {ending}" if ending else "a file whose name has no ending"
    return InvalidError(
        f"The studio does not read {named}; it seems to be {seen}.", hint=_TAKEN, param="file"
    )
