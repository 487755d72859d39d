"""Supported formats and their file extensions."""

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
"""Extensions that may follow any of these, and the type of such a file."""
ARCHIVE_EXTENSION = ".zip"

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
