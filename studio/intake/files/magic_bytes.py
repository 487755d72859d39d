"""What the first bytes of a file say it is, in words."""

import re

UTF8_BOM = b"\xef\xbb\xbf"
ARROW_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
JSON_LIST_START = re.compile(rb'\s*(?:\{\s*(?:"version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*)?\[')
"""A list of rows, or an object whose first entry is one; a version may stand before it."""

ARROW = "an Arrow file"
PARQUET = "a Parquet file"
JSON = "JSON"
HTML = "an HTML page"
XML = "XML"
TEXT = "text"
BINARY = "not text, and no data set either"
"""It holds NUL bytes; text in UTF-16 and UTF-32 does, too."""
ZIP = "a zip archive"
WORKBOOK = "an Excel workbook"

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", PARQUET),
    (ARROW_MAGIC, ARROW),
    (ARROW_STREAM_MAGIC, ARROW),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a sound, film or image"),
    (b"%PDF", "a PDF document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old document of Word or Excel"),
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
    (b"\x7fELF", "a program"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
)
_HTML = re.compile(rb"<(!doctype|html|head|body|svg|!--)", re.IGNORECASE)
_XML = re.compile(rb"<\?xml", re.IGNORECASE)
_TAR_MAGIC_RANGE = slice(257, 262)

HINTS = {
    PARQUET: "Rename it so that it ends in .parquet.",
    ARROW: "Rename it so that it ends in .arrow.",
    JSON: "Rename it so that it ends in .json or .jsonl.",
    HTML: "Was a web page saved in place of the file? Download the file itself.",
    "an old document of Word or Excel": "Save a table as CSV, a document as plain text.",
    WORKBOOK: "Rename it so that it ends in .xlsx.",
    "an OpenDocument table": "Save it as CSV and upload that.",
    "a Word document": "Save it as plain text and upload that.",
    "an OpenDocument text": "Save it as plain text and upload that.",
    "a PDF document": "Save its text as plain text and upload that.",
    "an SQLite database": "Export the table as CSV and upload that.",
    "a Python pickle": "Opening a pickle may run any program. Write the rows as JSON lines.",
    "a PyTorch file": "Opening it may run any program. Write the rows as JSON lines.",
    "a gzip archive": "Rename it so that it ends in .gz behind the ending of what is in it.",
    "a zstandard archive": "Rename it so that it ends in .zst behind the ending of what is in it.",
    ZIP: "Rename it so that it ends in .zip.",
    "a tar archive": "Unpack it, and pack its files as zip.",
}


def describe_content(head: bytes) -> str:
    """Name what the first bytes of a file are."""
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
