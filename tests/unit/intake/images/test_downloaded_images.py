"""Images with URLs: downloaded once each, within limits; with the reason if they cannot be."""

import json
from typing import Any

import pytest

from studio.intake.files.limits import ImageLimits
from studio.intake.mapping import Mapping
from tests.fakes.file_server import FileServer
from tests.support.sample_images import image
from tests.unit.intake.conftest import Convert, Result

RED = image("red")
VQA = Mapping(
    shape="prompt_completion",
    roles={"prompt": ["question"], "completion": ["answer"], "images": ["image"]},
    media="use",
)


def import_urls(bring: Convert, *urls: str, **limits: Any) -> Result:  # noqa: ANN401 -- of `ImageLimits`
    rows = [
        {"question": f"Question {number}?", "answer": "Red", "image": url}
        for number, url in enumerate(urls)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    return bring(lines, mapping=VQA, images=ImageLimits(allow_internal=True, **limits))


def messages(result: Result) -> list[str]:
    return [problem.message for problem in result.converted.problems if problem.rows]


def test_same_url_is_downloaded_once(bring: Convert, site: FileServer) -> None:
    red = site.put("/red.png", RED)
    blue = site.put("/photo", image("blue", kind="WEBP"))

    result = import_urls(bring, *[red, blue] * 20)

    assert len(result.rows) == 40
    assert sorted(path for path, _range in site.asked) == ["/photo", "/red.png"]


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (
            {"content": b"", "status": 404},
            "An image could not be downloaded (127.0.0.1 answered with status 404).",
        ),
        ({"content": b"<html>"}, "An image is not a PNG, JPEG, WebP or GIF file."),
        (
            {"content": RED + bytes(2000)},
            "An image is larger than the limit (more than 0.001 MB).",
        ),
    ],
)
def test_row_of_an_unusable_download_is_left_out(
    bring: Convert, site: FileServer, served: dict[str, Any], message: str
) -> None:
    good, bad = site.put("/red.png", RED), site.put("/bad.png", **served)

    result = import_urls(bring, good, bad, bytes=1000)

    assert (len(result.rows), messages(result)) == (1, [message])


def test_redirect_is_followed_under_the_same_rules(bring: Convert, site: FileServer) -> None:
    red = site.put("/red.png", RED)
    moved = site.put("/old.png", status=302, headers={"Location": red})
    inside = site.put("/bad.png", status=302, headers={"Location": "file:///etc/passwd"})

    result = import_urls(bring, moved, inside)

    assert len(result.rows) == 1
    assert messages(result)[0].startswith("An image could not be downloaded (127.0.0.1: A URL must")


def test_host_without_answer_is_not_asked_for_ever(bring: Convert, site: FileServer) -> None:
    red = site.put("/red.png", RED)
    host, _, port = red.removeprefix("http://").removesuffix("/red.png").partition(":")
    closed = f"http://localhost:{int(port) + 1 if int(port) < 60_000 else int(port) - 1}"

    result = import_urls(bring, red, *[f"{closed}/{number}.png" for number in range(30)])

    assert host == "127.0.0.1"
    assert len(result.rows) == 1
    assert result.problems[0][1] == 30
