"""Images of a question: which are taken, and what is refused in words."""

import base64
import hashlib
import http.server
import threading
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from studio.errors import InvalidError, StudioError, TooLargeError
from studio.services.chat import sent_images
from studio.settings import Settings


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:  # noqa: ANN401 -- Pillow's
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def asking(*urls: str) -> list[dict[str, Any]]:
    images = [
        {"url": url, "at": 0, "param": f"messages.0.content.{number}.image_url"}
        for number, url in enumerate(urls)
    ]
    return [{"role": "user", "content": "What is it?", "images": images}]


SMALL = Image.new("RGB", (6, 4), (200, 30, 30))
PNG = encode(SMALL)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_each_format_is_taken_with_its_size(settings: Settings, kind: str) -> None:
    content = encode(SMALL, kind)

    taken = sent_images.take(settings, asking(data_url(content)))

    (image,) = taken.messages[0]["images"]
    name = hashlib.sha256(content).hexdigest()
    assert image == {"sha256": name, "at": 0, "width": 6, "height": 4}
    assert taken.images == [content]


WEBP: dict[str, dict[str, Any]] = {
    "VP8X": {"icc_profile": b"x"},
    "VP8L": {"lossless": True},
    "VP8 ": {},
}
"""Options of Pillow that write each kind of WebP file, by the name of its first chunk."""


@pytest.mark.parametrize("kind", WEBP)
def test_size_of_webp_is_read_from_its_header(kind: str) -> None:
    content = encode(Image.new("RGB", (300, 70)), "WEBP", **WEBP[kind])

    assert content[12:16] == kind.encode()
    assert sent_images.read_size(content, 300 * 70) == (300, 70)
    with pytest.raises(InvalidError, match="300 x 70 pixels"):
        sent_images.read_size(content, 300 * 70 - 1)


def test_turned_image_has_the_size_that_is_shown(settings: Settings) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    taken = sent_images.take(settings, asking(data_url(encode(SMALL, "JPEG", exif=exif))))

    (image,) = taken.messages[0]["images"]
    assert (image["width"], image["height"]) == (4, 6)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lambda text: text.replace("=", ""), id="no padding"),
        pytest.param(
            lambda text: "\n".join(text[i : i + 40] for i in range(0, 999, 40)), id="lines"
        ),
        pytest.param(lambda text: text.replace("+", "%2B").replace("/", "%2F"), id="percent"),
    ],
)
def test_spellings_of_base64_are_read(settings: Settings, text: Any) -> None:  # noqa: ANN401 -- a function
    head, _comma, encoded = data_url(PNG).partition(",")

    assert sent_images.take(settings, asking(f"{head},{text(encoded)}")).images == [PNG]


def _bomb() -> bytes:
    """Return a PNG file of a few kilobytes that claims 40,000 x 40,000 pixels."""
    header = encode(Image.new("1", (1, 1)))
    size = (40_000).to_bytes(4, "big") * 2
    chunk = b"IHDR" + size + header[24:29]
    return header[:12] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + header[33:]


REFUSED = {
    "no base64": ("data:image/png,abc", "by its address"),
    "bad base64": ("data:image/png;base64,????", "not valid base64"),
    "text": (data_url(b"hello"), "is none"),
    "svg": (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"), "is none"),
    "bmp": (data_url(encode(SMALL, "BMP"), "image/bmp"), "is none"),
    "cut": (data_url(PNG[:-30]), "damaged"),
    "empty": ("data:image/png;base64,", "is none"),
    "bomb": (data_url(_bomb()), "pixels"),
    "file": ("file:///etc/passwd", "http"),
    "path": ("/etc/passwd", "http"),
    "loopback": ("http://127.0.0.1:9000/a.png", "internal address"),
    "metadata": ("http://169.254.169.254/latest", "internal address"),
    "password": ("https://me:secret@example.com/a.png", "password"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_things_are_refused_in_words(settings: Settings, name: str) -> None:
    url, reason = REFUSED[name]

    with pytest.raises(InvalidError, match=reason) as refused:
        sent_images.take(settings, asking(url))

    assert refused.value.param == "messages.0.content.0.image_url"


def test_number_and_bytes_of_a_request_are_limited(tmp_path: Path) -> None:
    few = Settings(home=tmp_path, images_per_question=1)
    with pytest.raises(InvalidError, match="2 images, and at most 1"):
        sent_images.take(few, asking(data_url(PNG), data_url(PNG)))

    small = Settings(home=tmp_path, image_bytes_per_question=len(PNG) + 1)
    sent_images.take(small, asking(data_url(PNG)))
    with pytest.raises(TooLargeError):
        sent_images.take(small, asking(data_url(PNG), data_url(PNG)))


class _Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = {"/a.png": PNG, "/large.png": PNG * 1000}.get(self.path)
        self.send_response(200 if content else 404)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_address_is_fetched_where_the_operator_allows_it(tmp_path: Path, site: str) -> None:
    settings = Settings(home=tmp_path, allow_internal_addresses=True, image_bytes_per_question=5000)

    assert sent_images.take(settings, asking(f"{site}/a.png")).images == [PNG]
    with pytest.raises(InvalidError, match="status 404"):
        sent_images.take(settings, asking(f"{site}/none.png"))
    with pytest.raises(StudioError, match="more than"):
        sent_images.take(settings, asking(f"{site}/large.png"))
    with pytest.raises(InvalidError, match="could not be fetched"):
        sent_images.take(settings, asking("http://127.0.0.1:1/a.png"))
