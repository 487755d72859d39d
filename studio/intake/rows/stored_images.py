"""The images of written rows: delete those that no row has, and count the others."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studio.intake.images.image_files import IMAGES
from studio.intake.images.image_types import HEAD_BYTES, detect_type
from studio.intake.rows.pipeline import ROW_FILES

_KEY = b'"images": ['
"""Occurs in the line of a row with images; in a text, its quotes would be escaped."""


@dataclass(slots=True)
class ImageCounts:
    """What the images of a dataset version are."""

    rows: int = 0
    """Rows with images."""
    images: int = 0
    """Distinct ones."""
    bytes: int = 0
    types: Counter[str] = field(default_factory=Counter)
    sizes: set[tuple[int, int]] = field(default_factory=set)
    """Widths and heights in pixels."""

    @property
    def text(self) -> str:
        """Describe them: how many, how large, and of which types."""
        if not self.images:
            return ""
        counted = sorted(self.types.items(), key=lambda pair: (-pair[1], pair[0]))
        types = ", ".join(f"{count:,} {name}" for name, count in counted)
        smallest, largest = (
            f"{width} by {height}"
            for width, height in (min(self.sizes, key=_area), max(self.sizes, key=_area))
        )
        return (
            f"{self.images:,} in {self.rows:,} rows, {_format_size(self.bytes)}: {types}; "
            f"{smallest} to {largest} pixels"
        )


def _format_size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"  # noqa: PLR2004 -- a million


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def keep_used_images(folder: Path) -> ImageCounts:
    """Delete the stored images that no row has: of rows left out later. Count the others."""
    counts, used = ImageCounts(), set[str]()
    for row in _rows_with_images(folder):
        counts.rows += 1
        for image in row_images(row):
            used.add(image["sha256"])
            counts.sizes.add((image["width"], image["height"]))
    stored = folder / IMAGES
    for path in sorted(stored.iterdir()) if stored.exists() else ():
        if path.name not in used:
            path.unlink()
            continue
        counts.images += 1
        counts.bytes += path.stat().st_size
        with path.open("rb") as file:
            kind = detect_type(file.read(HEAD_BYTES))
        counts.types[kind.name if kind else ""] += 1
    if stored.exists() and not counts.images:
        stored.rmdir()
    return counts


def row_images(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the images of a canonical row."""
    for turn in row.get("messages", ()):
        yield from turn.get("images", ())


def _rows_with_images(folder: Path) -> Iterator[dict[str, Any]]:
    for name in ROW_FILES.values():
        path = folder / name
        if not path.exists():
            continue
        with path.open("rb") as lines:
            for line in lines:
                if _KEY in line:
                    yield json.loads(line)
