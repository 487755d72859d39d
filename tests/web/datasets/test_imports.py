"""The ways to bring data, as the data sets page offers them."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.services.datasets import import_sources
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.starter import samples
from studio.web.app import create_app
from tests.support.page_reader import Node, parse_page


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    opened = tmp_path / "opened"
    (opened / "deeper").mkdir(parents=True)
    (opened / "<b>.jsonl").write_text("{}\n")
    return opened


@pytest.fixture
def client(engine: Engine, settings: Settings, opened: Path) -> TestClient:
    return TestClient(create_app(engine, settings.model_copy(update={"import_folders": (opened,)})))


def shown(client: TestClient, **asked: str) -> Node:
    return parse_page(client.get("/datasets", params=asked).text)


def test_all_import_sources_are_offered_and_current_one_marked(client: TestClient) -> None:
    tabs = shown(client, way="hub").one("nav", class_="tabs").all("a")

    assert [(tab.text, "aria-current" in tab.attributes) for tab in tabs] == [
        ("Upload", False),
        ("Folder", False),
        ("URL", False),
        ("Hugging Face", True),
        ("S3", False),
        ("Sample data", False),
    ]


def test_unknown_import_source_falls_back_to_upload(client: TestClient) -> None:
    tab = shown(client, way="ftp").one("nav", class_="tabs").one(**{"aria-current": "page"})

    assert tab.text == "Upload"


def test_allowed_folders_can_be_browsed(client: TestClient, opened: Path) -> None:
    folders = shown(client, way="path").one(id="form").one("tbody").all("tr")
    inner = shown(client, way="path", at=str(opened)).one(id="form").one("tbody").all("tr")

    assert [row.one("th").text for row in folders] == [f"{opened}/"]
    assert [(row.one("th").text, row.all("td")[0].text) for row in inner] == [
        ("deeper/", ""),
        ("<b>.jsonl", "3 B"),
    ]


def test_folder_outside_allowed_roots_is_rejected(client: TestClient) -> None:
    answer = client.get("/datasets", params={"way": "path", "at": "/etc"})

    assert answer.status_code == 422


def test_import_error_is_shown_at_field_and_keeps_input(client: TestClient) -> None:
    answer = client.post("/datasets/imports", data={"kind": "hub", "id": "rows", "split": "test"})
    page = parse_page(answer.text)

    told = (answer.status_code, page.one(id="id-problem").text, page.one(id="split").attributes)
    assert told[:2] == (422, "rows does not have the form owner/name.")
    assert told[2]["value"] == "test"


def test_import_shows_download_progress(client: TestClient) -> None:
    answer = client.post(
        "/datasets/imports",
        data={"kind": "url", "url": "https://example.org/rows.csv", "name": "mine"},
        follow_redirects=False,
    )
    assert answer.headers["location"] == "/chores/1?then=/datasets/imports/1/done"
    waits = shown(client).one(id="chore-1")
    told = waits.all("div", class_="bar")[0].all("span")[0].text
    assert told == "Downloading a file https://example.org/rows.csv"


def test_finished_import_redirects_to_dataset(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        tasks.enqueue(db, "fetch", "import:1", {}).result = {"dataset_id": 1}
    partial = {"HX-Request-Type": "partial"}

    assert client.get("/datasets/imports/1/done", headers=partial).headers["hx-redirect"] == (
        "/datasets/1"
    )


@pytest.mark.parametrize(
    "source",
    [{}, {"kind": "ftp"}, {"kind": "url"}, {"kind": "url", "url": "https://x/", "key": "mine"}],
)
def test_invalid_import_source_is_rejected(client: TestClient, source: dict[str, str]) -> None:
    assert client.post("/api/v1/datasets", json={"source": source}).status_code == 422


def test_samples_can_be_added(client: TestClient, engine: Engine) -> None:
    page = parse_page(client.get("/datasets", params={"way": "sample"}).text)
    offered = [one.attributes["value"] for one in page.all("input", name="id")]
    answer = client.post("/datasets/imports", data={"kind": "sample", "id": offered[0]})

    assert offered == [*samples.SAMPLES]
    with unit_of_work(engine) as db:
        assert [one.kind for one in import_sources.list_unfinished(db)] == ["fetch"]
    assert answer.url.path == "/chores/1"


def test_form_without_fitting_data_leads_to_samples(client: TestClient) -> None:
    page = parse_page(client.get("/new", params={"method": "dpo"}).text)

    assert page.one(id="dataset-facts").one("a").attributes["href"] == "/datasets?way=sample"
