"""What a file is: told by its first bytes, and held against what its name says.

A packed file is what is in it; an archive is what all of its files are. How a file is packed is
told by its bytes wherever it is read, so that a format need not say it.
"""

import re
from collections.abc import Callable
from pathlib import Path

from studio.errors import InvalidError
from studio.intake.files import archives
from studio.intake.files.data_files import HEAD, Part, Parts, parts
from studio.intake.files.encodings import head_as_utf8
from studio.intake.files.formats import ARCHIVE, ENDINGS, IN_WORDS, PACKINGS, Format, bare, ending
from studio.intake.files.magic_bytes import (
    ARROW,
    BOM,
    HINTS,
    HTML,
    JSON,
    JSON_LIST,
    NOT_TEXT,
    PARQUET,
    TEXT,
    WORKBOOK,
    XML,
    ZIP,
    seen,
)

_TAKEN = f"Can be read: {IN_WORDS}."
_OBJECTS = re.compile(rb'\s*(?:\[\s*)?\{\s*"')
_COMMENT = re.compile(rb"\s*<!--")
_TEXTUAL = {TEXT, JSON, HTML, XML, NOT_TEXT}
"""What text in any encoding may look like before it is decoded."""
_SPEAKING = {JSON: ".jsonl", PARQUET: ".parquet", ARROW: ".arrow"}
"""What a packed file may be whose name does not say it: `rows.gz`."""


def recognise(path: Path, filename: str) -> Format:
    """Return the format of a file, or of all files in an archive.

    Raises:
        InvalidError: it is empty, of a kind we do not read, or not what its name says.

    """
    if archives.is_zip(path):
        return _archived(path, ending(filename))
    with parts(path) as found:
        return _of(found.parts[0], filename)


def _of(part: Part, filename: str) -> Format:
    named, outside = ending(filename), seen(part.head(as_packed=True))
    if named in PACKINGS and outside != PACKINGS[named]:
        raise _mismatch(named, outside)
    if named not in PACKINGS and outside in PACKINGS.values():
        raise _mismatch(named, outside) if named in ENDINGS else _unreadable(named, outside)
    head = part.head()
    head = (head_as_utf8(head) if seen(head) in _TEXTUAL else head).removeprefix(BOM)
    inside = seen(head)
    if inside == TEXT and not head.strip() and len(head) < HEAD - len(BOM):
        raise InvalidError("The file is empty.", hint="Choose a file with rows.", param="file")
    if named in PACKINGS:
        named = ending(bare(filename)) or _SPEAKING.get(inside, "")
    return _agreed(named, inside, head)


def _agreed(named: str, inside: str, head: bytes) -> Format:
    """Return the format that an ending stands for, if the first bytes agree."""
    if named not in ENDINGS:
        raise _unreadable(named, inside)
    kind = ENDINGS[named]
    if not _FITS[kind](inside, head):
        raise _mismatch(named, inside)
    if kind not in {"json", "jsonl"}:
        return kind
    # Both endings are used for both: a list, or a row on each line.
    return "json" if JSON_LIST.match(head) else "jsonl"


def _archived(path: Path, named: str) -> Format:
    inside = archives.document(path) or ZIP
    if inside == WORKBOOK and ENDINGS.get(named) == "xlsx":
        return "xlsx"
    if named not in {ARCHIVE, *ENDINGS, *PACKINGS}:
        raise _unreadable(named, inside)
    if named != ARCHIVE or inside != ZIP:
        raise _mismatch(named, inside)
    with parts(path) as found:
        return _of_all(found)


def _of_all(found: Parts) -> Format:
    formats: dict[Format, str] = {}
    for part in found.parts:
        formats.setdefault(_of_member(part), part.name)
    if not formats:
        listed = f", only {', '.join(found.aside[:5])}" if found.aside else ""
        message = f"The zip archive holds no file with rows{listed}."
        raise InvalidError(message, hint=_TAKEN, param="file")
    if len(formats) > 1:
        raise InvalidError(
            f"The zip archive holds files of several formats: {', '.join(formats.values())}.",
            hint="Pack only files of one format together.",
            param="file",
        )
    return next(iter(formats))


def _of_member(part: Part) -> Format:
    try:
        return _of(part, part.name)
    except InvalidError as error:
        raise archives.within(part.name, error) from error


def _is_text(inside: str, head: bytes) -> bool:
    # Running text may well begin with a bracket; rows of JSON begin with an object's first key.
    return inside == TEXT or (inside == JSON and not _OBJECTS.match(head))


def _is_markdown(inside: str, head: bytes) -> bool:
    return _is_text(inside, head) or (inside == HTML and _COMMENT.match(head) is not None)


def _holds_json(inside: str, head: bytes) -> bool:
    # A broken first line does not make it another kind of file; a row is told by its brace.
    return inside == JSON or (inside == TEXT and (b"\n{" in head or not head.strip()))


_FITS: dict[Format, Callable[[str, bytes], bool]] = {
    "jsonl": _holds_json,
    "json": _holds_json,
    "csv": lambda inside, _head: inside == TEXT,
    "parquet": lambda inside, _head: inside == PARQUET,
    "arrow": lambda inside, _head: inside == ARROW,
    # Its reader tells a workbook from another archive.
    "xlsx": lambda inside, _head: inside == ZIP,
    "text": _is_text,
    "markdown": _is_markdown,
}


def _mismatch(named: str, inside: str) -> InvalidError:
    message = f"The name ends in {named}, but the file is {inside}."
    if inside == TEXT and named.startswith((".json", ".nd")):
        message = f"The name ends in {named}, but the file is text that is not JSON."
    return InvalidError(message, hint=HINTS.get(inside, _TAKEN), param="file")


def _unreadable(named: str, inside: str) -> InvalidError:
    what = f"a file ending in {named}" if named else "a file whose name has no ending"
    return InvalidError(
        f"The studio does not read {what}; it seems to be {inside}.",
        hint=HINTS.get(inside, _TAKEN),
        param="file",
    )
