"""Detect a file's format from its first bytes, and check it against the file name.

A packed file has the format of its content; an archive, that of all of its files. Compression is
detected from the bytes whenever a file is read, so a format does not mention it.
"""

import re
from collections.abc import Callable
from pathlib import Path

from studio.errors import InvalidError
from studio.intake.files import archives
from studio.intake.files.archives import HEAD_BYTES, DataFile, DataFiles, open_data_files
from studio.intake.files.encodings import head_as_utf8
from studio.intake.files.formats import (
    ARCHIVE_EXTENSION,
    ARROW,
    BINARY,
    COMPRESSIONS,
    EXTENSIONS,
    HINTS,
    HTML,
    JSON,
    JSON_LIST_START,
    PARQUET,
    SUPPORTED_FORMATS,
    TEXT,
    UTF8_BOM,
    WORKBOOK,
    XML,
    ZIP,
    Format,
    describe_content,
    extension,
    without_compression,
)

_SUPPORTED_HINT = f"Supported formats: {SUPPORTED_FORMATS}."
_JSON_OBJECT_START = re.compile(rb'\s*(?:\[\s*)?\{\s*"')
_HTML_COMMENT = re.compile(rb"\s*<!--")
_TEXT_TYPES = {TEXT, JSON, HTML, XML, BINARY}
"""How text in any encoding may look before it is decoded."""
_EXTENSION_OF_CONTENT = {JSON: ".jsonl", PARQUET: ".parquet", ARROW: ".arrow"}
"""The format of a packed file whose name does not give it: `rows.gz`."""


def detect_format(path: Path, filename: str) -> Format:
    """Return the format of a file, or of all files in an archive.

    Raises:
        InvalidError: it is empty, not supported, or does not match its name.

    """
    if archives.is_zip(path):
        return _detect_archive(path, extension(filename))
    with open_data_files(path) as data_files:
        return _detect_part(data_files.files[0], filename)


def _detect_part(part: DataFile, filename: str) -> Format:
    named, outside = extension(filename), describe_content(part.read_head(as_packed=True))
    if named in COMPRESSIONS and outside != COMPRESSIONS[named]:
        raise _mismatch_error(named, outside)
    if named not in COMPRESSIONS and outside in COMPRESSIONS.values():
        raise (
            _mismatch_error(named, outside)
            if named in EXTENSIONS
            else _unsupported_error(named, outside)
        )
    head = part.read_head()
    head = (head_as_utf8(head) if describe_content(head) in _TEXT_TYPES else head).removeprefix(
        UTF8_BOM
    )
    inside = describe_content(head)
    if inside == TEXT and not head.strip() and len(head) < HEAD_BYTES - len(UTF8_BOM):
        raise InvalidError("The file is empty.", hint="Choose a file that has rows.", param="file")
    if named in COMPRESSIONS:
        named = extension(without_compression(filename)) or _EXTENSION_OF_CONTENT.get(inside, "")
    return _match_extension(named, inside, head)


def _match_extension(named: str, inside: str, head: bytes) -> Format:
    """Return the format of an extension, if the first bytes agree."""
    if named not in EXTENSIONS:
        raise _unsupported_error(named, inside)
    kind = EXTENSIONS[named]
    if not _CONTENT_CHECKS[kind](inside, head):
        raise _mismatch_error(named, inside)
    if kind == "csv" and _is_tagged_text(head):
        return "text"
    if kind not in {"json", "jsonl"}:
        return kind
    # Both extensions are used for both: a list, or one row per line.
    return "json" if JSON_LIST_START.match(head) else "jsonl"


def _detect_archive(path: Path, named: str) -> Format:
    inside = archives.document_type(path) or ZIP
    if inside == WORKBOOK and EXTENSIONS.get(named) == "xlsx":
        return "xlsx"
    if named not in {ARCHIVE_EXTENSION, *EXTENSIONS, *COMPRESSIONS}:
        raise _unsupported_error(named, inside)
    if named != ARCHIVE_EXTENSION or inside != ZIP:
        raise _mismatch_error(named, inside)
    with open_data_files(path) as data_files:
        return _detect_members(data_files)


def _detect_members(data_files: DataFiles) -> Format:
    formats: dict[Format, str] = {}
    for part in data_files.files:
        formats.setdefault(_detect_member(part), part.name)
    if not formats:
        listed = f", only {', '.join(data_files.ignored[:5])}" if data_files.ignored else ""
        message = f"The zip archive contains no data files{listed}."
        raise InvalidError(message, hint=_SUPPORTED_HINT, param="file")
    if len(formats) > 1:
        raise InvalidError(
            f"The zip archive contains files of several formats: {', '.join(formats.values())}.",
            hint="Include only files of one format.",
            param="file",
        )
    return next(iter(formats))


def _detect_member(part: DataFile) -> Format:
    try:
        return _detect_part(part, part.name)
    except InvalidError as error:
        raise archives.error_in_member(part.name, error) from error


def _is_text(inside: str, head: bytes) -> bool:
    # Plain text may start with a bracket; JSON rows start with an object's first key.
    return inside == TEXT or (inside == JSON and not _JSON_OBJECT_START.match(head))


def _is_markdown(inside: str, head: bytes) -> bool:
    return _is_text(inside, head) or (inside == HTML and _HTML_COMMENT.match(head) is not None)


_TAGGED_LINE = re.compile(rb"\S+(?:[ \t]+\S+)*[ \t]+(?:O|[BIESLU]-\S+)\s*")


def _is_tagged_text(head: bytes) -> bool:
    """Whether a table is text in CoNLL's format: a word and its tag a line, then a blank line."""
    *lines, _rest = head.splitlines() or [b""]
    words = [line for line in lines if line.strip() and not line.startswith(b"-DOCSTART-")]
    has_blank_lines = any(not line.strip() for line in lines)
    return has_blank_lines and bool(words) and all(map(_TAGGED_LINE.fullmatch, words))


def _is_json(inside: str, head: bytes) -> bool:
    # A broken first line does not change the format; a row starts with a brace.
    return inside == JSON or (inside == TEXT and (b"\n{" in head or not head.strip()))


_CONTENT_CHECKS: dict[Format, Callable[[str, bytes], bool]] = {
    "jsonl": _is_json,
    "json": _is_json,
    "csv": lambda inside, _head: inside == TEXT,
    "parquet": lambda inside, _head: inside == PARQUET,
    "arrow": lambda inside, _head: inside == ARROW,
    # Its reader distinguishes a workbook from other archives.
    "xlsx": lambda inside, _head: inside == ZIP,
    "text": _is_text,
    "markdown": _is_markdown,
}


def _mismatch_error(named: str, inside: str) -> InvalidError:
    message = f"The file has the extension {named}, but its content is {inside}."
    if inside == TEXT and named.startswith((".json", ".nd")):
        message = f"The file has the extension {named}, but its content is not JSON rows."
        hint = "Rows are objects in braces. If it is a table or a text, use its own extension."
        return InvalidError(message, hint=hint, param="file")
    return InvalidError(message, hint=HINTS.get(inside, _SUPPORTED_HINT), param="file")


def _unsupported_error(named: str, inside: str) -> InvalidError:
    what = f"files with the extension {named}" if named else "files without an extension"
    hint = "Add the extension of its format, such as .csv, .jsonl or .txt."
    return InvalidError(
        f"Mantissa Studio does not support {what}; this seems to be {inside}.",
        hint=hint if inside == TEXT and not named else HINTS.get(inside, _SUPPORTED_HINT),
        param="file",
    )
