"""The formats that are read, and the endings of names that stand for them."""

from pathlib import PurePosixPath
from typing import Literal

Format = Literal["jsonl", "json", "csv", "parquet", "arrow", "xlsx", "text", "markdown"]

ENDINGS: dict[str, Format] = {
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
PACKINGS = {".gz": "a gzip archive", ".zst": "a zstandard archive"}
"""What may stand behind any of these endings, and what the bytes of such a file are."""
ARCHIVE = ".zip"

ACCEPTED = ",".join([*ENDINGS, *PACKINGS, ARCHIVE])
"""All endings, as the file chooser of a browser wants them."""
IN_WORDS = (
    "JSON lines, JSON, CSV, TSV, Excel (.xlsx), Parquet, Arrow, plain text or Markdown, "
    "as they are, packed as .gz or .zst, or in a zip archive"
)


def ending(filename: str) -> str:
    return PurePosixPath(filename).suffix.lower()


def bare(filename: str) -> str:
    """Return a name without the ending that says how it is packed."""
    return filename[: -len(ending(filename))] if ending(filename) in PACKINGS else filename


def endings(filename: str) -> str:
    """Return what of a name says a file's format, and how it is packed."""
    packing = ending(filename) if ending(filename) in PACKINGS else ""
    return ending(bare(filename)) + packing


def stem(filename: str) -> str:
    """Return a file's name without the endings that say its format."""
    return PurePosixPath(bare(filename)).stem
