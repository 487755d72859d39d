"""The formats that are read, and the endings of names that stand for them."""

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
    ".md": "markdown",
    ".markdown": "markdown",
}
COMPRESSIONS = {".gz": "a gzip archive", ".zst": "a zstandard archive"}
"""What may stand behind any of these endings, and what the bytes of such a file are."""
ARCHIVE_EXTENSION = ".zip"

ACCEPTED_EXTENSIONS = ",".join([*EXTENSIONS, *COMPRESSIONS, ARCHIVE_EXTENSION])
"""All endings, as the file chooser of a browser wants them."""
SUPPORTED_FORMATS = (
    "JSON lines, JSON, CSV, TSV, Excel (.xlsx), Parquet, Arrow, plain text or Markdown, "
    "as they are, packed as .gz or .zst, or in a zip archive"
)


def extension(filename: str) -> str:
    return PurePosixPath(filename).suffix.lower()


def without_compression(filename: str) -> str:
    """Return a name without the ending that says how it is packed."""
    return (
        filename[: -len(extension(filename))] if extension(filename) in COMPRESSIONS else filename
    )


def full_extension(filename: str) -> str:
    """Return what of a name says a file's format, and how it is packed."""
    packing = extension(filename) if extension(filename) in COMPRESSIONS else ""
    return extension(without_compression(filename)) + packing


def stem(filename: str) -> str:
    """Return a file's name without the endings that say its format."""
    return PurePosixPath(without_compression(filename)).stem
