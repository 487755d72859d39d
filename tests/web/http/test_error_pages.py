"""Error pages name what went wrong, and lead on."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from tests.support.factories import make_run
from tests.support.page_reader import Node, parse_page


def links(page: Node) -> list[tuple[str, str]]:
    found = page.one("ul", class_="links").all("a")
    return [(link.text, link.attributes["href"]) for link in found]


def test_missing_run_offers_the_newest_ones(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for name in ("older", "newer"):
            make_run(db, name)

    answer = client.get("/runs/99")
    page = parse_page(answer.text).one("main")
    assert (answer.status_code, page.one("h1").text) == (404, "Not found")
    assert page.one(role="alert").one("strong").text == "Run 99 does not exist."
    assert links(page) == [("newer", "/runs/2"), ("older", "/runs/1")]


@pytest.mark.parametrize(
    ("path", "name"), [("/dataset/7", "starter"), ("/datasets/77", "starter"), ("/run/1", "first")]
)
def test_similar_path_offers_the_newest_of_its_kind(
    client: TestClient, engine: Engine, path: str, name: str
) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "first")

    assert name in [text for text, _ in links(parse_page(client.get(path).text))]


def test_mistyped_page_offers_similar_one(client: TestClient) -> None:
    assert links(parse_page(client.get("/setings").text)) == [("Settings", "/settings")]


def test_error_page_has_a_search_and_one_heading(client: TestClient) -> None:
    page = parse_page(client.get("/nowhere").text)

    assert page.one("main").one("form", role="search").attributes["action"] == "/palette"
    assert len(page.all("h1")) == 1
    assert page.one("title").text == "Not found · Mantissa Studio"


def test_missing_page_of_api_is_answered_as_json(client: TestClient) -> None:
    assert client.get("/api/v1/runs/99").json()["error"]["message"] == "Run 99 does not exist."


def test_page_that_takes_no_posts_says_so(client: TestClient) -> None:
    answer = client.post("/help")

    page = parse_page(answer.text).one("main")
    assert (answer.status_code, page.one("h1").text) == (405, "Not a page")
    assert not page.all("ul", class_="links")
