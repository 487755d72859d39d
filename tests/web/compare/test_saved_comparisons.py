"""Comparisons that are kept, found again and handed on."""

import io
import zipfile

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Run
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page

SAVED = {"name": "Seeds | of <b>one</b>", "text": "They agree.", "query": "runs=1,2&x=tokens"}


def two(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for precision in ("bf16", "fp32"):
            make_finished_run(db, precision, precision=precision)


def test_comparison_is_saved_by_form_and_reopens_unchanged(
    client: TestClient, engine: Engine
) -> None:
    two(engine)
    kept = client.post("/comparisons", data=SAVED, follow_redirects=False)
    opened = client.get("/comparisons/1", follow_redirects=False)

    assert kept.headers["location"] == "/comparisons/1"
    assert opened.headers["location"] == "/compare?runs=1,2&x=tokens&saved=1"
    page = parse_page(client.get("/comparisons/1").text)
    assert page.one("h1").text == SAVED["name"]
    assert SAVED["text"] in page.one(class_="note").text


def test_saved_comparisons_are_listed_on_compare_page(client: TestClient, engine: Engine) -> None:
    two(engine)
    client.post("/comparisons", data=SAVED)

    assert (
        parse_page(client.get("/compare").text).all("a", href="/comparisons/1")[0].text
        == (SAVED["name"])
    )


def test_comparison_without_name_is_rejected(client: TestClient) -> None:
    assert client.post("/comparisons", data=SAVED | {"name": " "}).status_code == 422


def test_api_creates_changes_lists_and_deletes_comparisons(client: TestClient) -> None:
    url = "/api/v1/comparisons"
    made = client.post(url, json=SAVED)
    changed = client.patch(f"{url}/1", json={"text": "They do not."})
    listed = client.get(url).json()["data"]
    gone = client.delete(f"{url}/1")

    assert (made.status_code, gone.status_code) == (201, 204)
    assert [one["text"] for one in (changed.json(), *listed)] == ["They do not."] * 2
    assert client.get(f"{url}/1").status_code == 404


def test_export_zip_contains_text_and_charts(client: TestClient, engine: Engine) -> None:
    two(engine)
    client.post("/comparisons", data=SAVED)
    answer = client.get("/api/v1/comparisons/1/export")

    with zipfile.ZipFile(io.BytesIO(answer.content)) as folder:
        names = folder.namelist()
        text = folder.read("comparison-1/comparison-1.md").decode()
        picture = folder.read("comparison-1/loss.svg").decode()
    assert names == ["comparison-1/loss.svg", "comparison-1/comparison-1.md"]
    assert "They agree." in text
    assert "![Training loss](loss.svg)" in text
    assert "| precision | bf16 | fp32 |" in text
    assert picture.count('stroke-width="1.75"') == 2


def test_exported_chart_shows_difference_from_baseline(client: TestClient, engine: Engine) -> None:
    two(engine)
    answer = client.get("/compare/export?runs=1,2&base=2&m=loss&y=log&curves=difference")

    with zipfile.ZipFile(io.BytesIO(answer.content)) as folder:
        picture = folder.read("comparison/loss.svg").decode()
    assert "difference from float32" in picture
    assert ">0<" in picture


def test_saved_comparison_lists_deleted_run(client: TestClient, engine: Engine) -> None:
    two(engine)
    with unit_of_work(engine) as db:
        make_finished_run(db)
    client.post("/comparisons", data=SAVED | {"query": "runs=1,2,3"})
    client.delete("/api/v1/runs/3").raise_for_status()
    with unit_of_work(engine) as db:
        assert db.get(Run, 3) is None

    assert "Deleted in the meantime: run 3." in parse_page(client.get("/comparisons/1").text).text
