"""The types of images that can be used, recognised by their first bytes and never by a name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageType:
    name: str
    """As people and Pillow call it."""
    media_type: str


PNG = ImageType("PNG", "image/png")
JPEG = ImageType("JPEG", "image/jpeg")
GIF = ImageType("GIF", "image/gif")
WEBP = ImageType("WEBP", "image/webp")

IMAGE_TYPES = (PNG, JPEG, GIF, WEBP)
HEAD_BYTES = 12
"""How many first bytes tell the type."""
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
)


def detect_type(head: bytes) -> ImageType | None:
    """Return the type of an image; None if it is none of these."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return WEBP
    return next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), None)
