"""Datasets with images: preview, pages, REST, files, and methods that read only text."""

import hashlib
import io
import json
import zipfile
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.methods import METHODS
from studio.settings import Settings
from tests.support.finished_builds import finish_build
from tests.support.page_reader import Node, parse_page
from tests.support.sample_images import image
from tests.unit.intake.conftest import zipped
from tests.web.datasets.test_mapping import API, form_of, screen

RED, BLUE = image("red"), image("blue", kind="JPEG", size=(20, 10))
ROWS = [
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Compare "},
                    {"type": "image"},
                    {"type": "text", "text": " with this:"},
                    {"type": "image"},
                ],
            },
            {"role": "assistant", "content": f"Answer {number}"},
        ],
        "images": ["photos/red.png", "photos/blue.jpg"],
    }
    for number in range(3)
]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive(rows: list[dict[str, Any]] | None = None, **files: bytes) -> bytes:
    lines = "".join(f"{json.dumps(row)}\n" for row in rows or ROWS)
    images = {"photos/red.png": RED, "photos/blue.jpg": BLUE}
    return zipped({"rows.jsonl": lines.encode()} | images | files)


def upload(client: TestClient, content: bytes = b"", **fields: str) -> int:
    files = {"file": ("photos.zip", content or archive())}
    number: int = client.post(API, files=files, data=fields).raise_for_status().json()["id"]
    return number


@pytest.fixture
def dataset(client: TestClient, engine: Engine, settings: Settings) -> int:
    number = upload(client)
    finish_build(engine, settings, number)
    return number


def sources(node: Node) -> list[str]:
    return [image.attributes["src"] or "" for image in node.all("img")]


def test_images_are_read_by_a_task_and_not_by_the_web(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    number = upload(client)
    before = client.get(f"{API}/{number}").json()
    finish_build(engine, settings, number)

    after = client.get(f"{API}/{number}").json()
    assert (before["status"], before["version"]) == ("building", None)
    assert (after["status"], after["kind"], after["train_rows"]) == ("ready", "images", 3)


def test_page_shows_thumbnails_where_they_stand(client: TestClient, dataset: int) -> None:
    page = parse_page(client.get(f"/datasets/{dataset}").text)

    row = page.one("section", **{"aria-labelledby": "rows"}).one("ol").all("li", class_="card")[0]
    turn = row.all("div", class_="user")[0]
    red, blue = turn.all("img")
    base = f"/datasets/{dataset}/versions/1/images"
    assert turn.text == "user Compare with this:"
    assert sources(turn) == [f"{base}/{digest(RED)}", f"{base}/{digest(BLUE)}"]
    assert [link.attributes["href"] for link in turn.all("a")] == sources(turn)
    assert (red.attributes["alt"], blue.attributes["alt"]) == (
        "Image, 8 by 6 pixels",
        "Image, 20 by 10 pixels",
    )
    assert red.attributes["loading"] == "lazy"
    assert "Images (2 in 3 rows" in page.text


def test_preview_shows_thumbnails_before_the_dataset_is_built(client: TestClient) -> None:
    number = upload(client, draft="true")

    page = screen(client, number)
    preview = page.one("section", id="preview")
    shown = client.get(sources(preview)[0])

    assert "Of all 3 rows, 3 are usable." in preview.text
    assert sources(preview)[:2] == [
        f"/datasets/{number}/mapping/images/{digest(RED)}",
        f"/datasets/{number}/mapping/images/{digest(BLUE)}",
    ]
    assert (shown.content, shown.headers["content-type"]) == (RED, "image/png")


def test_detected_mapping_is_saved_and_built(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    number = upload(client, draft="true")

    saved = client.post(f"/datasets/{number}/mapping", data=form_of(screen(client, number)))
    finish_build(engine, settings, number)

    made = client.get(f"{API}/{number}").json()
    assert saved.status_code == 200
    assert (made["kind"], made["train_rows"]) == ("images", 3)
    assert made["mapping"]["roles"] == {"messages": ["messages"], "images": ["images"]}
    assert not (settings.datasets / str(number) / "preview-images").exists()


def test_rest_rows_describe_the_images(client: TestClient, dataset: int) -> None:
    row = client.get(f"{API}/{dataset}/rows").json()["data"][0]

    assert row["messages"][0]["images"] == [
        {"sha256": digest(RED), "at": 8, "width": 8, "height": 6},
        {"sha256": digest(BLUE), "at": 19, "width": 20, "height": 10},
    ]


@pytest.mark.parametrize("prefix", ["/datasets", API])
def test_image_is_served_by_its_bytes_and_can_do_nothing(
    client: TestClient, dataset: int, prefix: str
) -> None:
    answer = client.get(f"{prefix}/{dataset}/versions/1/images/{digest(BLUE)}")

    assert (answer.content, answer.headers["content-type"]) == (BLUE, "image/jpeg")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    ("name", "status"),
    [("0" * 64, 404), ("..%2f..%2ftrain.jsonl", 404), ("train.jsonl", 404), ("A" * 64, 404)],
)
@pytest.mark.parametrize("place", ["versions/1", "mapping"])
def test_only_images_are_served(
    client: TestClient, dataset: int, place: str, name: str, status: int
) -> None:
    answer = client.get(f"/datasets/{dataset}/{place}/images/{name}")

    assert answer.status_code in {status, 422}
    assert not answer.headers["content-type"].startswith("image/")


def test_file_that_is_no_image_is_never_served(
    client: TestClient, dataset: int, settings: Settings
) -> None:
    folder = settings.datasets / str(dataset) / "1" / "images"
    (folder / ("b" * 64)).write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")

    answer = client.get(f"/datasets/{dataset}/versions/1/images/{'b' * 64}")

    assert answer.status_code == 404


@pytest.mark.parametrize("prefix", ["/datasets", API])
def test_download_has_the_images_and_can_be_imported_again(
    client: TestClient, engine: Engine, settings: Settings, dataset: int, prefix: str
) -> None:
    answer = client.get(f"{prefix}/{dataset}/versions/1/rows.zip")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        names = packed.namelist()
    again = upload(client, answer.content, name="again")
    finish_build(engine, settings, again)

    first, second = (client.get(f"{API}/{number}/versions/1").json() for number in (dataset, again))
    assert names == ["train.jsonl", *sorted(f"images/{digest(one)}" for one in (RED, BLUE))]
    assert first["sha256"] == second["sha256"]


def test_dataset_can_be_validated_on_another_with_images(
    client: TestClient, engine: Engine, settings: Settings, dataset: int
) -> None:
    other = upload(client, name="other")
    finish_build(engine, settings, other)
    mapping = client.get(f"{API}/{dataset}").json()["mapping"]
    mapping["split"] = {"kind": "dataset", "dataset": "other"}

    answer = client.post(f"{API}/{dataset}/versions", json={"mapping": mapping})
    finish_build(engine, settings, dataset)

    made = client.get(f"{API}/{dataset}").json()
    folder = settings.datasets / str(dataset) / "2" / "images"
    assert answer.status_code == 202
    assert (made["train_rows"], made["validation_rows"]) == (3, 3)
    assert {path.name for path in folder.iterdir()} == {digest(RED), digest(BLUE)}


@pytest.mark.usefixtures("dataset")
def test_text_only_methods_refuse_images_in_words(client: TestClient) -> None:
    others = [method for method in METHODS.values() if "images" not in method.trains_on]
    for method in (one for one in others if "causal" in one.trainable_kinds):
        if method.name == "distil":
            continue  # What it lacks first is a teacher.
        recipe = {"method": method.name, "base_model": "starter", "dataset": "photos"}
        answer = client.post("/api/v1/runs", json={"name": "x", "recipe": recipe})

        assert answer.status_code == 422
        message = f"{method.title} cannot train on conversations with images."
        assert answer.json()["error"]["message"] == message


def test_pages_about_the_dataset_open(client: TestClient, dataset: int) -> None:
    pages = (
        "/datasets",
        "/new",
        f"/new?from=dataset:{dataset}",
        f"/datasets/{dataset}/stats",
        f"/datasets/{dataset}/sight",
        f"/datasets/{dataset}?finding=duplicates",
        f"/datasets/{dataset}/mapping",
        f"/datasets/{dataset}?original=1",
    )

    assert {client.get(url).status_code for url in pages} == {200}


def test_deleting_the_dataset_deletes_its_images(
    client: TestClient, dataset: int, settings: Settings
) -> None:
    client.delete(f"{API}/{dataset}").raise_for_status()

    assert not (settings.datasets / str(dataset)).exists()


def test_row_with_a_missing_image_is_counted_on_the_page(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    broken = {**ROWS[0], "images": ["photos/red.png", "photos/gone.png"]}
    number = upload(client, archive([*ROWS, broken]))
    finish_build(engine, settings, number)

    text = parse_page(client.get(f"/datasets/{number}").text).text
    assert (
        "An image is missing: it must be in a zip archive with the rows (photos/gone.png)." in text
    )
