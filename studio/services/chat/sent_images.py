"""The images of a question to a model: fetched, and checked before any of them is used."""

import base64
import binascii
import hashlib
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import unquote_to_bytes

from PIL import Image, ImageOps, UnidentifiedImageError

from studio.errors import InvalidError, StudioError, TooLargeError, UnavailableError
from studio.network import safe_http
from studio.settings import Settings

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""As in OpenAI's API. Of a moving image, models see the first one."""

FETCH_SECONDS = 20.0
"""How long all images of a question may take to arrive from their addresses."""

_DECODING = threading.BoundedSemaphore(2)
"""How many images are decoded at a time: each takes memory for all of its pixels."""

_UNREADABLE = (
    UnidentifiedImageError,
    Image.DecompressionBombError,
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    Image.DecompressionBombWarning,
    struct.error,
)
"""What Pillow raises about damaged files."""

_SEND_ITSELF = "Send the image itself, as data:image/png;base64,…"
_SEND_ANOTHER = "Send a PNG, JPEG, WebP or GIF file."


@dataclass(frozen=True, slots=True)
class SentImages:
    messages: list[dict[str, Any]]
    """The conversation, whose turns name the images by their checksum."""
    images: list[bytes]
    """The files, in the order in which they stand."""


def take(settings: Settings, messages: Sequence[Mapping[str, Any]]) -> SentImages:
    """Fetch the images of a conversation, whose turns give an address for each.

    Raises:
        InvalidError: There are too many, or one is no image, or its address must not be called,
            or cannot be reached.
        TooLargeError: They have too many bytes.

    """
    count = sum(len(message.get("images", ())) for message in messages)
    if count > (most := settings.images_per_question):
        raise InvalidError(
            f"The messages have {count} images, and at most {most} are allowed.",
            hint="Leave some out, or start a new conversation.",
            param="messages",
        )
    taken, images = [], _Intake(settings)
    for message in messages:
        turn = dict(message)
        if turn.get("images"):
            turn["images"] = [images.add(**image) for image in turn["images"]]
        taken.append(turn)
    return SentImages(taken, images.files)


def unseen_error(model: str) -> InvalidError:
    """Return why the images of a question to a model are refused that reads text alone."""
    return InvalidError(
        f"{model} reads text only, and the messages have images.",
        hint="Leave them out, or choose a model that reads images.",
        param="messages",
    )


class _Intake:
    """The images of a question, as far as they have been fetched."""

    def __init__(self, settings: Settings) -> None:
        self.files: list[bytes] = []
        self._settings = settings
        self._left = settings.image_bytes_per_question
        self._deadline = time.monotonic() + FETCH_SECONDS

    def add(self, *, url: str, at: int, param: str) -> dict[str, Any]:
        """Fetch an image. Return what its turn says of it."""
        try:
            content = self._read(url)
            width, height = read_size(content, self._settings.image_limit_pixels)
        except StudioError as error:
            error.param = param
            raise
        self._left -= len(content)
        self.files.append(content)
        name = hashlib.sha256(content).hexdigest()
        return {"sha256": name, "at": at, "width": width, "height": height}

    def _read(self, url: str) -> bytes:
        if url[:5].lower() == "data:":
            content = _decode(url)
            if len(content) > self._left:
                raise self._too_large()
            return content
        try:
            return self._fetch(url)
        except UnavailableError as error:
            reason = error.message
            raise InvalidError(
                f"An image could not be fetched: {reason}", hint=_SEND_ITSELF
            ) from error

    def _fetch(self, url: str) -> bytes:
        safe_http.validate_url(url)
        seconds = max(0.1, self._deadline - time.monotonic())
        opened = safe_http.open_url(
            url,
            {"Accept": ", ".join(f"image/{one.lower()}" for one in FORMATS)},
            seconds=seconds,
            allow_internal=self._settings.allow_internal_addresses,
        )
        content = b""
        with opened as response:
            if response.status != 200:  # noqa: PLR2004 -- OK
                raise InvalidError(
                    f"The address of an image answered with status {response.status}.",
                    hint=_SEND_ITSELF,
                )
            for piece in response.iter_bytes():
                content += piece
                if len(content) > self._left:
                    raise self._too_large()
        return content

    def _too_large(self) -> TooLargeError:
        limit = self._settings.image_bytes_per_question / 2**20
        return TooLargeError(
            f"The images have more than {limit:.0f} MiB.", hint="Send smaller ones, or fewer."
        )


def _decode(url: str) -> bytes:
    """Return the content of a data URL."""
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidError(
            "An image is sent as data:image/png;base64,… or by its address.", hint=_SEND_ANOTHER
        )
    try:
        plain = b"".join(unquote_to_bytes(text).split()).rstrip(b"=")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"An image is not valid base64: {error}.", hint=_SEND_ANOTHER) from None


def read_size(content: bytes, most_pixels: int) -> tuple[int, int]:
    """Return the width and the height of an image that can be decoded.

    Raises:
        InvalidError: It is no image, is damaged, or has too many pixels.

    """
    try:
        if size := _webp_size(content):
            # Pillow makes room for the whole image before it tells how large it is.
            _require_few_pixels(size, most_pixels)
        with _DECODING, Image.open(BytesIO(content), formats=FORMATS) as image:
            _require_few_pixels(image.size, most_pixels)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # as when a model reads it
            return image.size
    except UnidentifiedImageError:
        raise InvalidError(
            "A file that was sent as an image is none.", hint=_SEND_ANOTHER
        ) from None
    except _UNREADABLE as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise InvalidError(f"An image is damaged: {reason}.", hint=_SEND_ANOTHER) from None


def _require_few_pixels(size: tuple[int, int], most: int) -> None:
    width, height = size
    if width * height > most:
        raise InvalidError(
            f"An image has {width} x {height} pixels; at most {most:,} pixels are allowed.",
            hint="Send a smaller one.",
        )


def _webp_size(content: bytes) -> tuple[int, int] | None:
    """Return the size that the header of a WebP file names; None for any other file."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(content) < 30:  # noqa: PLR2004 -- header
        return None
    if content[12:16] == b"VP8X":
        width, height = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
    elif content[12:16] == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(content[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width, height
