"""Store images by the hash of their content, each once: `images/<sha256>` beside the rows.

A preview stores a few of them unchecked, for a browser to show, before the dataset is built.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from studio.errors import TooLargeError
from studio.intake.files.limits import ImageLimits
from studio.intake.images.image_checks import check_image, check_size
from studio.intake.images.image_files import IMAGES
from studio.intake.images.image_types import HEAD_BYTES, detect_type
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.schema import TurnImage, UnusableRowError

_PREVIEW_BYTES = 16 * 2**20
"""The size of the images that one preview reads."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    sha256: str
    """Empty if it was not stored."""
    width: int
    """Zero if it was not decoded."""
    height: int

    def at(self, place: int) -> TurnImage:
        """Return the image as a row names it, at a place in a turn."""
        return {"sha256": self.sha256, "at": place, "width": self.width, "height": self.height}


NOT_STORED = StoredImage("", 0, 0)


class ImageStore(Protocol):
    """Where images are stored."""

    downloads: bool
    """Whether images are downloaded."""

    @property
    def is_full(self) -> bool:
        """Whether it stores no more: images need not be read."""

    def add(self, content: bytes) -> StoredImage:
        """Store an image.

        Raises:
            UnusableRowError: it cannot be used.

        """


class CheckedImages:
    """The images of a dataset version: each is decoded once, to see that it can be used."""

    downloads = True
    is_full = False

    def __init__(self, folder: Path, limits: ImageLimits) -> None:
        self._folder = folder / IMAGES
        self._limits = limits
        self._stored: dict[str, StoredImage] = {}
        self._bytes = 0

    def add(self, content: bytes) -> StoredImage:
        """Store an image, unless the same one is stored already.

        Raises:
            TooLargeError: all images together are larger than the limit.
            UnusableRowError: it cannot be used.

        """
        check_size(len(content), self._limits)
        digest = hashlib.sha256(content).hexdigest()
        stored = self._stored.get(digest)
        if stored is not None:
            return stored
        facts = check_image(content, self._limits)
        self._bytes += len(content)
        if self._bytes > self._limits.total_bytes:
            raise TooLargeError(
                f"The images are larger than {self._limits.total_bytes / 1e9:.3g} GB together.",
                hint="Use fewer or smaller images.",
                param="file",
            )
        self._folder.mkdir(exist_ok=True)
        (self._folder / digest).write_bytes(content)
        stored = self._stored[digest] = StoredImage(digest, facts.width, facts.height)
        return stored


class PreviewImages:
    """The first images of a file, stored without decoding them: only a browser opens them."""

    downloads = False

    def __init__(self, folder: Path, limits: ImageLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes > _PREVIEW_BYTES

    def add(self, content: bytes) -> StoredImage:
        self._bytes += len(content)
        check_size(len(content), self._limits)
        if detect_type(content[:HEAD_BYTES]) is None:
            raise UnusableRowError(ProblemCode.NOT_AN_IMAGE)
        digest = hashlib.sha256(content).hexdigest()
        path = self._folder / digest
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return StoredImage(digest, 0, 0)
