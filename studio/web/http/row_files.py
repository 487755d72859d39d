"""Responses with images of rows, and with archives of rows.

An image is what somebody uploaded. Its type comes from its first bytes and never from a name, and a
browser may do nothing with it but show it.
"""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Path
from fastapi.responses import FileResponse, Response, StreamingResponse

from studio.errors import NotFoundError
from studio.intake.images.image_types import HEAD_BYTES, IMAGE_TYPES, detect_type

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
"""The hash of an image, which names it."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}
IMAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind.media_type: _BINARY for kind in IMAGE_TYPES}}
}
ZIP_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/zip": _BINARY}}}
_IMAGE_HEADERS = {
    # The address contains the hash of the content.
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "inline",
}


def image_response(path: FilePath) -> Response:
    """Return an image.

    Raises:
        NotFoundError: It is not of a type that browsers may show.

    """
    with path.open("rb") as file:
        kind = detect_type(file.read(HEAD_BYTES))
    if kind is None:
        raise NotFoundError("There is no such image.")
    return FileResponse(path, media_type=kind.media_type, headers=_IMAGE_HEADERS)


def zip_response(pieces: Iterator[bytes], filename: str) -> StreamingResponse:
    disposition = f"attachment; filename*=UTF-8''{quote(filename)}"
    headers = {"Content-Disposition": disposition}
    return StreamingResponse(pieces, media_type="application/zip", headers=headers)
