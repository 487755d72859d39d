"""Supported formats: their file extensions, and the first bytes by which files are recognised."""

import re
from pathlib import PurePosixPath
from typing import Literal

Format = Literal["jsonl", "json", "csv", "parquet", "arrow", "xlsx", "text", "markdown"]

EXTENSIONS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".txt": "text",
    ".conll": "text",
    ".bio": "text",
    ".iob": "text",
    ".iob2": "text",
    ".md": "markdown",
    ".markdown": "markdown",
}
COMPRESSIONS = {".gz": "a gzip archive", ".zst": "a zstandard archive"}
"""Extensions that may follow any of these, and the type of such a file."""
ARCHIVE_EXTENSION = ".zip"
IMAGE_EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif"})
"""Extensions of the images that rows in an archive may refer to."""

ACCEPTED_EXTENSIONS = ",".join([*EXTENSIONS, *COMPRESSIONS, ARCHIVE_EXTENSION])
"""All extensions, in the format of a browser's file picker."""
SUPPORTED_FORMATS = (
    "JSON Lines, JSON, CSV, TSV, Excel (.xlsx), Parquet, Arrow, plain text or Markdown, "
    "uncompressed, compressed as .gz or .zst, or in a zip archive"
)


def extension(filename: str) -> str:
    return PurePosixPath(filename).suffix.lower()


def without_compression(filename: str) -> str:
    """Return a name without its compression extension."""
    return (
        filename[: -len(extension(filename))] if extension(filename) in COMPRESSIONS else filename
    )


def full_extension(filename: str) -> str:
    """Return the extensions for format and compression."""
    packing = extension(filename) if extension(filename) in COMPRESSIONS else ""
    return extension(without_compression(filename)) + packing


def stem(filename: str) -> str:
    """Return a file's name without these extensions."""
    return PurePosixPath(without_compression(filename)).stem


UTF8_BOM = b"\xef\xbb\xbf"
ARROW_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
JSON_LIST_START = re.compile(rb'\s*(?:\{\s*(?:"version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*)?\[')
"""A list of rows, or an object whose first entry is one; a version may come before it."""

ARROW = "an Arrow file"
PARQUET = "a Parquet file"
JSON = "JSON"
HTML = "an HTML page"
XML = "XML"
TEXT = "text"
BINARY = "binary data in an unknown format"
"""It contains NUL bytes; UTF-16 and UTF-32 text does, too."""
ZIP = "a zip archive"
WORKBOOK = "an Excel workbook"

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", PARQUET),
    (ARROW_MAGIC, ARROW),
    (ARROW_STREAM_MAGIC, ARROW),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "an audio, video or image file"),
    (b"%PDF", "a PDF document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Word or Excel document"),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstandard archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x7fELF", "an executable"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
)
_HTML = re.compile(rb"<(!doctype|html|head|body|svg|!--)", re.IGNORECASE)
_XML = re.compile(rb"<\?xml", re.IGNORECASE)
_TAR_MAGIC_RANGE = slice(257, 262)

HINTS = {
    PARQUET: "Change the extension to .parquet.",
    ARROW: "Change the extension to .arrow.",
    JSON: "Change the extension to .json or .jsonl.",
    HTML: "A web page may have been saved instead of the file. Download the file itself.",
    "an old Word or Excel document": "Save a spreadsheet as CSV, or a document as plain text.",
    WORKBOOK: "Change the extension to .xlsx.",
    "an OpenDocument table": "Save it as CSV and upload the CSV file.",
    "a Word document": "Save it as plain text and upload the text file.",
    "an OpenDocument text": "Save it as plain text and upload the text file.",
    "a PDF document": "Save its text as plain text and upload the text file.",
    "an SQLite database": "Export the table as CSV and upload the CSV file.",
    "a Python pickle": "Opening a pickle can run arbitrary code. Export the rows as JSON Lines.",
    "a PyTorch file": "Opening it can run arbitrary code. Export the rows as JSON Lines.",
    "a gzip archive": "Add .gz after the extension of its content, as in rows.csv.gz.",
    "a zstandard archive": "Add .zst after the extension of its content, as in rows.csv.zst.",
    ZIP: "Change the extension to .zip.",
    "a tar archive": "Unpack it, and compress its files as zip.",
}


def describe_content(head: bytes) -> str:
    """Describe what a file's first bytes show."""
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    text = head.removeprefix(UTF8_BOM).lstrip()
    if head[_TAR_MAGIC_RANGE] == b"ustar":
        return "a tar archive"
    if b"\0" in head:
        return BINARY
    if _HTML.match(text):
        return HTML
    if _XML.match(text):
        return XML
    return JSON if text.startswith((b"{", b"[")) else TEXT
