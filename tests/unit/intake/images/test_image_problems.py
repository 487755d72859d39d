"""Images that cannot be used: their rows are left out, with the reason."""

import io
import json
import struct
import zipfile
import zlib
from typing import Any

import pytest

from studio.errors import InvalidError, TooLargeError
from studio.intake.files.limits import ImageLimits
from studio.intake.mapping import Mapping
from tests.support.sample_images import data_url, image
from tests.unit.intake.conftest import Convert, Result, zipped

RED = image("red")
BLOCKED = "is an internal address, which is blocked"
GOOD = {"question": "What colour?", "answer": "Red", "image": "red.png"}
ROLES = {"prompt": ["question"], "completion": ["answer"], "images": ["image"]}
VQA = Mapping(shape="prompt_completion", roles=ROLES, media="use")
SHAREGPT = Mapping(
    shape="sharegpt",
    roles={"conversations": ["conversations"], "images": ["images"]},
    media="use",
)


def as_lines(*rows: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def with_image(value: object) -> dict[str, Any]:
    return {**GOOD, "image": value}


def import_vqa(bring: Convert, *rows: dict[str, Any], **files: bytes) -> Result:
    """Import these rows and a good one, in an archive with these files."""
    archive = zipped({"rows.jsonl": as_lines(GOOD, *rows), "red.png": RED} | files)
    return bring(archive, "rows.zip", VQA)


def messages(result: Result) -> list[str]:
    return [problem.message for problem in result.converted.problems if problem.rows]


def png_bomb(width: int, height: int) -> bytes:
    """Return a small PNG of very many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(width // 8), 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    )


BAD = {
    "missing": (
        "gone.png",
        "An image is missing: it must be in a zip archive with the rows (gone.png).",
    ),
    "path above the archive": (
        "../red.png",
        "The path of an image leads outside of the archive (../red.png).",
    ),
    "path through a folder": (
        "a/../../red.png",
        "The path of an image leads outside of the archive (a/../../red.png).",
    ),
    "path above, Windows": (
        "..\\red.png",
        "The path of an image leads outside of the archive (..\\red.png).",
    ),
    "absolute path": (
        "/etc/hostname.png",
        "The path of an image leads outside of the archive (/etc/hostname.png).",
    ),
    "drive": ("C:/red.png", "The path of an image leads outside of the archive (C:/red.png)."),
    "file URL": (
        "file:///etc/passwd.png",
        "The path of an image leads outside of the archive (file:///etc/passwd.png).",
    ),
    "other case": (
        "RED.PNG",
        "An image is missing: it must be in a zip archive with the rows (RED.PNG).",
    ),
    "SVG": (
        data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        "An image is not a PNG, JPEG, WebP or GIF file.",
    ),
    "other content": ("page.png", "An image is not a PNG, JPEG, WebP or GIF file."),
    "cut off": ("cut.png", "An image cannot be decoded (image file is truncated"),
    "broken base64": (
        "data:image/png;base64,iVBO!",
        "An image cannot be decoded (invalid base64).",
    ),
    "bomb": ("bomb.png", "An image is larger than the limit (more than 50 million pixels)."),
    "this machine": (
        "http://127.0.0.1/a.png",
        f"An image could not be downloaded (127.0.0.1: 127.0.0.1 {BLOCKED}).",
    ),
    "cloud metadata": (
        "http://169.254.169.254/latest/a.png",
        f"An image could not be downloaded (169.254.169.254: 169.254.169.254 {BLOCKED}).",
    ),
    "a number": (7, "An image is not a PNG, JPEG, WebP or GIF file."),
}


@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD.keys())
def test_row_with_an_unusable_image_is_left_out_with_the_reason(
    bring: Convert, value: object, message: str
) -> None:
    files = {
        "page.png": b"<html><script>alert(1)</script>",
        "cut.png": image("red", size=(400, 400))[:200],
        "bomb.png": png_bomb(50_000, 50_000),
    }

    result = import_vqa(bring, with_image(value), **files)

    assert len(result.rows) == 1
    assert [text[: len(message)] for text in messages(result)] == [message]
    assert [problem.rows for problem in result.converted.problems if problem.rows] == [[2]]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (ImageLimits(bytes=60), "An image is larger than the limit (more than 6e-05 MB)."),
        (
            ImageLimits(pixels=47),
            "An image is larger than the limit (more than 4.7e-05 million pixels).",
        ),
    ],
)
def test_image_beyond_a_limit_is_left_out(
    bring: Convert, limits: ImageLimits, message: str
) -> None:
    small = image("red", size=(1, 1), kind="GIF")
    rows = as_lines(GOOD, with_image("small.gif"))
    archive = zipped({"rows.jsonl": rows, "red.png": RED, "small.gif": small})

    result = bring(archive, "rows.zip", VQA, images=limits)

    assert (len(result.rows), messages(result)) == (1, [message])


def test_too_many_bytes_of_images_are_refused(bring: Convert) -> None:
    rows = as_lines(GOOD, with_image("blue.png"))
    archive = zipped({"rows.jsonl": rows, "red.png": RED, "blue.png": image("blue")})

    with pytest.raises(TooLargeError, match="images are larger than"):
        bring(archive, "rows.zip", VQA, images=ImageLimits(total_bytes=len(RED) + 1))


def test_same_image_counts_and_is_stored_once(bring: Convert) -> None:
    rows = as_lines(GOOD, {**GOOD, "question": "Which?", "image": "copy.png"})
    archive = zipped({"rows.jsonl": rows, "red.png": RED, "copy.png": RED})

    result = bring(archive, "rows.zip", VQA, images=ImageLimits(total_bytes=len(RED)))

    assert len(result.rows) == 2
    assert len(list(result.folder.joinpath("images").iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "images", "detail"),
    [
        ("<image><image> Which?", ["red.png"], "1 images, 2 places"),
        ("<image> Which?", ["red.png", "red.png"], "2 images, 1 places"),
        ("Which?", ["red.png"], "1 images, 0 places"),
        ("<image> Which?", [], "0 images, 1 places"),
    ],
)
def test_markers_must_be_as_many_as_images(
    bring: Convert, text: str, images: list[str], detail: str
) -> None:
    def row(value: str, of: list[str]) -> dict[str, Any]:
        turns = [{"from": "human", "value": value}, {"from": "gpt", "value": "Red."}]
        return {"conversations": turns, "images": of}

    rows = as_lines(row("<image>What?", ["red.png"]), row(text, images))

    result = bring(zipped({"rows.jsonl": rows, "red.png": RED}), "rows.zip", SHAREGPT)

    assert messages(result) == [f"There are not as many images as places for them ({detail})."]


def test_image_in_an_answer_is_refused(bring: Convert) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(RED)}}
    good = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "Red"}]
    bad = [{"role": "user", "content": "Draw"}, {"role": "assistant", "content": ["Red", part]}]

    result = bring(as_lines({"messages": good}, {"messages": bad}))

    assert messages(result) == ["An answer has an image, but models answer with text."]


@pytest.mark.parametrize("other", [{"audio": "a.wav"}, {"question": "<video> What?"}])
def test_row_with_other_media_is_left_out(bring: Convert, other: dict[str, str]) -> None:
    result = import_vqa(bring, {**GOOD, **other})

    assert len(result.rows) == 1
    assert messages(result)[0].startswith("Contains an image, audio, video or file that is not")


@pytest.mark.parametrize(
    "mapping",
    [
        Mapping(shape="text", roles={"text": ["question"]}, media="use"),
        Mapping(shape="task", roles={"prompt": ["question"]}, media="use"),
    ],
)
def test_other_shapes_refuse_images(bring: Convert, mapping: Mapping) -> None:
    with pytest.raises(InvalidError, match="Images can be used in conversations only") as refused:
        bring(as_lines(with_image(data_url(RED))), mapping=mapping)

    assert refused.value.param == "media"


def test_images_of_rows_that_are_left_out_are_deleted(bring: Convert) -> None:
    rows = [with_image(data_url(image(f"#{i:06x}"))) for i in range(20)]
    mapping = VQA.model_copy(update={"sample": 5})

    result = bring(as_lines(*rows), mapping=mapping)

    kept = {row["messages"][0]["images"][0]["sha256"] for row in result.rows}
    assert len(kept) == 5
    assert {path.name for path in result.folder.joinpath("images").iterdir()} == kept


def test_same_question_about_other_images_is_no_duplicate(bring: Convert) -> None:
    rows = [with_image(data_url(image(name))) for name in ("red", "blue", "red")]
    mapping = VQA.model_copy(update={"deduplicate": "question"})

    result = bring(as_lines(*rows), mapping=mapping)

    assert len(result.rows) == 2
    assert result.converted.removed == {"duplicate": 1}


def test_report_counts_images(bring: Convert) -> None:
    result = bring(
        as_lines(
            with_image(data_url(RED)),
            with_image(data_url(image("blue", kind="JPEG", size=(40, 30)))),
        )
    )

    notes = {str(problem.code): problem for problem in result.converted.problems}
    assert notes["images"].count == 2
    assert notes["images"].message.startswith("Images (2 in 2 rows, 0.")
    assert notes["images"].message.endswith(" kB: 1 JPEG, 1 PNG; 8 by 6 to 40 by 30 pixels).")


def test_symbolic_link_in_an_archive_is_refused(bring: Convert) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("rows.jsonl", as_lines(GOOD))
        link = zipfile.ZipInfo("red.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")

    with pytest.raises(InvalidError, match="points outside the archive"):
        bring(out.getvalue(), "rows.zip", VQA)


def test_images_may_be_ignored_as_before(bring: Convert) -> None:
    mapping = VQA.model_copy(
        update={"media": "ignore", "roles": {"prompt": ["question"], "completion": ["answer"]}}
    )

    result = bring(as_lines(with_image("gone.png")), mapping=mapping)

    assert result.converted.kind == "conversation"
    assert "images" not in result.rows[0]["messages"][0]
