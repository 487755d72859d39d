"""Decode an image, to see that it can be used: in a process whose memory and time are limited."""

import io
import struct
import warnings
import zlib
from dataclasses import dataclass

from PIL import Image, ImageFile, UnidentifiedImageError

from studio.intake.files.limits import ImageLimits
from studio.intake.images.image_types import HEAD_BYTES, ImageType, detect_type
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.schema import UnusableRowError

_DECODING_ERRORS = (
    *(UnidentifiedImageError, OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError),
    *(EOFError, OverflowError, struct.error, zlib.error),
)
"""What Pillow raises for broken images."""
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_ORIENTATION_TAG = 0x0112
_TURNED_BY_90 = frozenset({5, 6, 7, 8})
"""EXIF orientations that exchange width and height."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    kind: ImageType
    width: int
    """In pixels, as it is shown: turned as its EXIF data says."""
    height: int


def check_size(size: int, limits: ImageLimits) -> None:
    """Refuse an image of too many bytes.

    Raises:
        UnusableRowError: it is larger than the limit.

    """
    if size > limits.bytes:
        detail = f"more than {limits.bytes / 1e6:,.3g} MB"
        raise UnusableRowError(ProblemCode.LARGE_IMAGE, detail)


def check_image(content: bytes, limits: ImageLimits) -> ImageFacts:
    """Decode an image: of an animated one, the first frame.

    Raises:
        UnusableRowError: it is no image of a known type, broken, or larger than the limits.

    """
    check_size(len(content), limits)
    kind = detect_type(content[:HEAD_BYTES])
    if kind is None:
        raise UnusableRowError(ProblemCode.NOT_AN_IMAGE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=[kind.name]) as image:
                return _decode(image, kind, limits)
    except _BOMBS as error:
        raise _too_many_pixels(limits) from error
    except _DECODING_ERRORS as error:
        raise UnusableRowError(ProblemCode.BROKEN_IMAGE, _reason(error)) from error


def _decode(image: ImageFile.ImageFile, kind: ImageType, limits: ImageLimits) -> ImageFacts:
    width, height = image.size
    if width * height > limits.pixels:
        raise _too_many_pixels(limits)
    image.load()
    if image.getexif().get(_ORIENTATION_TAG) in _TURNED_BY_90:
        width, height = height, width
    return ImageFacts(kind, width, height)


def _too_many_pixels(limits: ImageLimits) -> UnusableRowError:
    return UnusableRowError(
        ProblemCode.LARGE_IMAGE, f"more than {limits.pixels / 1e6:,.3g} million pixels"
    )


def _reason(error: Exception) -> str:
    # The message of an unidentified image names an object in memory.
    return "unreadable" if isinstance(error, UnidentifiedImageError) else str(error)[:100]
