"""Read the images that rows refer to, and put in the rows what is stored of them."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from studio.intake.images.image_files import (
    ImageFiles,
    WebImages,
    decode_data_url,
    is_web_url,
)
from studio.intake.images.image_store import NOT_STORED, ImageStore, StoredImage
from studio.intake.row_formats.image_parts import ImageRef, PlacedImage, placed_images, row_turns
from studio.intake.row_formats.schema import CanonicalRow, Turn, UnusableRowError

_DOWNLOADS_AT_ONCE = 8
BATCH_ROWS = 16
"""Rows whose images are downloaded at once."""


class RowImages:
    """The images of the rows of one file."""

    def __init__(self, files: ImageFiles, web: WebImages, store: ImageStore) -> None:
        self._files, self._web, self._store = files, web, store
        self._by_name: dict[str, StoredImage | UnusableRowError] = {}
        """What became of the images that have been read, by file name or URL."""

    def download(self, rows: Iterable[CanonicalRow]) -> None:
        """Download the images of these rows at once, as far as they have URLs."""
        refs = [image.ref for row in rows for image in _row_images(row)]
        urls = {ref.name for ref in refs if ref and not ref.content and is_web_url(ref.name)}
        new = [url for url in urls if url not in self._by_name]
        if not new or not self._store.downloads:
            return
        with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
            # Few at a time, because all of them are in memory.
            for start in range(0, len(new), _DOWNLOADS_AT_ONCE):
                urls_now = new[start : start + _DOWNLOADS_AT_ONCE]
                for url, content in zip(urls_now, pool.map(self._fetch, urls_now), strict=True):
                    self._by_name[url] = self._add(content)

    def store(self, row: CanonicalRow, member: str) -> CanonicalRow:
        """Store the images of a row from a file of an archive, and return the row with them.

        Raises:
            TooLargeError: all images together are larger than the limit.
            UnusableRowError: an image is missing or cannot be used.

        """
        if "messages" not in row:
            return row
        turns = [self._store_turn(turn, member) for turn in row["messages"]]
        return cast("CanonicalRow", {**row, "messages": turns})

    def _store_turn(self, turn: Turn, member: str) -> Turn:
        images = placed_images(turn)
        if not images:
            return turn
        stored = [self._store_one(image.ref or ImageRef(), member).at(image.at) for image in images]
        return cast("Turn", {**turn, "images": stored})

    def _store_one(self, ref: ImageRef, member: str) -> StoredImage:
        content = decode_data_url(ref.name) if ref.content is None else ref.content
        if content is not None:
            return self._store.add(content)
        if is_web_url(ref.name):
            if not self._store.downloads:
                return NOT_STORED
            if ref.name not in self._by_name:
                self._by_name[ref.name] = self._add(self._fetch(ref.name))
            return _usable(self._by_name[ref.name])
        name = self._files.find(ref, member)
        if self._store.is_full:
            return NOT_STORED
        if name not in self._by_name:
            self._by_name[name] = self._add(self._read(name))
        return _usable(self._by_name[name])

    def _fetch(self, url: str) -> bytes | UnusableRowError:
        try:
            return self._web.fetch(url)
        except UnusableRowError as error:
            return error

    def _read(self, name: str) -> bytes | UnusableRowError:
        try:
            return self._files.read(name)
        except UnusableRowError as error:
            return error

    def _add(self, content: bytes | UnusableRowError) -> StoredImage | UnusableRowError:
        if isinstance(content, UnusableRowError):
            return content
        try:
            return self._store.add(content)
        except UnusableRowError as error:
            return error


def _usable(stored: StoredImage | UnusableRowError) -> StoredImage:
    if isinstance(stored, UnusableRowError):
        raise UnusableRowError(stored.code, stored.detail)
    return stored


def _row_images(row: CanonicalRow) -> Iterator[PlacedImage]:
    for turn in row_turns(row):
        yield from placed_images(turn)
