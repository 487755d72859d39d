"""Small images in the formats people bring, made with Pillow."""

import base64
import io

from PIL import Image


def image(
    colour: str = "red", *, size: tuple[int, int] = (8, 6), kind: str = "PNG", mode: str = "RGB"
) -> bytes:
    """Return an image of one colour."""
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, kind)
    return out.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
