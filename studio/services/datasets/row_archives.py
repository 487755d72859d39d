"""Pack the rows of a dataset version with their images, piece by piece, without a copy on disk."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from studio.db.tables import DatasetVersion
from studio.intake.images.image_files import IMAGES
from studio.services.datasets import versions

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CHUNK_BYTES = 2**18


class _Pieces(io.RawIOBase):
    """Collects what an archive writes until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        piece = memoryview(data)
        self._written += piece
        return piece.nbytes

    def take(self) -> bytes:
        piece = bytes(self._written)
        self._written.clear()
        return piece


def pack_rows(folder: Path, version: DatasetVersion) -> Iterator[bytes]:
    """Yield a zip archive of the rows and `images/<sha256>`; importing it gives the same rows."""
    train, validation = versions.row_files(folder, version)
    images = train.parent / IMAGES
    files = [train, *([validation] if validation else [])]
    files += sorted(images.iterdir()) if images.exists() else []
    return _pack(train.parent, files)


def _pack(folder: Path, files: list[Path]) -> Iterator[bytes]:
    pieces = _Pieces()
    with zipfile.ZipFile(pieces, "w") as archive:
        for path in files:
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            is_image = path.parent != folder
            info.compress_type = zipfile.ZIP_STORED if is_image else zipfile.ZIP_DEFLATED
            with path.open("rb") as file, archive.open(info, "w", force_zip64=True) as packed:
                while piece := file.read(_CHUNK_BYTES):
                    packed.write(piece)
                    yield pieces.take()
    yield pieces.take()
