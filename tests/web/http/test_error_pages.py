"""Error pages name what went wrong, and lead on."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.accounts import Role
from studio.db.session import unit_of_work
from studio.db.summaries import SavedComparison
from studio.db.tables import Study, Sweep
from studio.recipe.search_space import SEARCH_SPACE_ADAPTER
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.factories import make_finished_run, make_recipe, make_run
from tests.support.page_reader import Node, parse_page
from tests.support.visitors import make_visitors

pytestmark = pytest.mark.smoke

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


def links(page: Node) -> list[tuple[str, str]]:
    found = page.one("ul", class_="links").all("a")
    return [(link.text, link.attributes["href"]) for link in found]


def main_of(client: TestClient, path: str) -> Node:
    return parse_page(client.get(path).text).one("main")


def message(page: Node) -> list[str]:
    return [line.text for line in page.one(role="alert").all("p")]


def steps(page: Node) -> list[tuple[str, str]]:
    """Return the buttons that lead on, but for the one of every error page."""
    buttons = [link for link in page.all("a") if "btn" in link.attributes.get("class", "")]
    return [(link.text, link.attributes["href"]) for link in buttons if link.text != "Back to runs"]


def fill(db: Session) -> None:
    """Make one of each thing that has a page of its own, and its name says what it is."""
    recipe = make_recipe()
    make_run(db, "first")
    space = SEARCH_SPACE_ADAPTER.validate_python({"seed": {"values": [1, 2]}})
    about: dict[str, Any] = {"recipe": recipe, "space": space, "count": 2, "strategy": "grid"}
    db.add(Sweep(experiment_id=1, name="a sweep", **about))
    db.add(Study(experiment_id=1, name="a study", modes=["fp32"], seeds=[1]))
    db.add(SavedComparison(name="a comparison", query="runs=1,2"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(("/runs/9", "first"), ("/runs/9/charts", "first"), ("/experiments/9", "first")),
        *(("/datasets/9", "starter"), ("/models/9", "starter"), ("/sweeps/9", "a sweep")),
        *(("/reports/precision/9", "a study"), ("/comparisons/9", "a comparison")),
    ],
)
def test_missing_page_says_which_is_the_newest_of_its_kind(
    client: TestClient, engine: Engine, path: str, name: str
) -> None:
    with unit_of_work(engine) as db:
        fill(db)
    page = main_of(client, path)
    ((text, address),) = links(page)

    assert message(page)[1] == "The newest is number 1."
    assert (text, client.get(address).status_code) == (name, 200)


def test_deleted_run_is_said_to_be_deleted(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for name in ("gone", "kept"):
            make_finished_run(db, name)
    client.post("/runs/1/trash")
    client.post("/runs/1/delete")

    assert message(main_of(client, "/runs/1")) == ["Run 1 does not exist.", "It was deleted."]


def test_missing_run_of_an_empty_studio_leads_home(client: TestClient) -> None:
    page = main_of(client, "/runs/1")

    assert message(page)[1] == "There are none yet."
    assert not page.all("ul", class_="links")


@pytest.mark.parametrize(
    ("path", "name"), [("/models/starter", "starter"), ("/datasets/strater", "starter")]
)
def test_name_instead_of_a_number_finds_similar_names(
    client: TestClient, path: str, name: str
) -> None:
    answer = client.get(path)
    page = parse_page(answer.text).one("main")

    assert (answer.status_code, [text for text, _ in links(page)]) == (404, [name])
    assert steps(page) == [(f"Open {path.split('/')[1].title()}", f"/{path.split('/')[1]}")]


def test_mistyped_setting_offers_similar_ones(client: TestClient) -> None:
    first, *_others = links(main_of(client, "/help/knobs/optimizer.learningrate"))

    assert first == ("Learning rate", "/help/knobs/optimisation.learning_rate")


def test_missing_part_of_a_run_leads_to_the_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    page = main_of(client, "/runs/1/nonsense")
    assert not page.all("ul", class_="links")
    assert steps(page) == [("Open /runs/1", "/runs/1")]


def test_missing_page_tells_strangers_nothing(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        fill(db)
    stranger = make_visitors(engine, settings, "accounts").stranger()

    answers = [stranger.get(f"/runs/{number}", headers=BROWSER) for number in (1, 9)]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert "first" not in answers[1].text


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


def test_action_opened_as_a_page_leads_to_its_page(client: TestClient) -> None:
    answer = client.get("/runs/1/cancel")
    page = parse_page(answer.text).one("main")

    assert (answer.status_code, page.one("h1").text) == (405, "Not a page")
    assert message(page)[0] == "This address carries out an action; it is not a page."
    assert steps(page) == [("Open /runs/1", "/runs/1")]


def test_page_that_takes_no_posts_leads_back(client: TestClient) -> None:
    answer = client.post("/help", headers={"Referer": "http://testserver/queue?x=1"})
    page = parse_page(answer.text).one("main")

    assert (answer.status_code, page.one("h1").text) == (405, "Not a page")
    assert message(page)[0] == "/help does not accept POST requests."
    assert steps(page) == [("Go back", "/queue?x=1")]


def test_address_with_wrong_values_leads_to_the_page_without_them(client: TestClient) -> None:
    answer = client.get(f"/help?q={'x' * 300}")

    assert answer.status_code == 422
    assert steps(parse_page(answer.text).one("main")) == [
        ("Open the page without these values", "/help")
    ]


def test_fault_offers_to_try_again_and_names_the_request(
    engine: Engine, settings: Settings
) -> None:
    app = create_app(engine, settings)
    app.state.engine = None
    answer = TestClient(app, raise_server_exceptions=False).get("/compare?runs=1")
    page = parse_page(answer.text).one("main")

    assert answer.status_code == 500
    assert steps(page) == [("Try again", "/compare?runs=1")]
    assert page.one("code").text == answer.headers["x-request-id"]


def test_forbidden_page_shows_who_may_and_no_foreign_buttons(
    engine: Engine, settings: Settings
) -> None:
    viewer = make_visitors(engine, settings, "accounts").person("vera", Role.VIEWER)
    answer = viewer.get("/settings/people", headers=BROWSER)
    page = parse_page(answer.text)

    assert (answer.status_code, page.one("h1").text) == (403, "Not allowed")
    assert steps(page.one("main")) == [("See your access", "/settings/access")]
    assert "/new" not in [link.attributes["href"] for link in page.all("a")]


@pytest.mark.parametrize(
    ("headers", "body", "status", "title"),
    [
        ({"Host": "example.org"}, b"", 421, "Wrong address"),
        ({"Sec-Fetch-Site": "cross-site"}, b"", 403, "Not allowed"),
        ({}, b" " * (5 * 2**20), 413, "Too large"),
    ],
)
def test_refused_request_of_a_browser_gets_a_page_that_says_what_to_do(
    client: TestClient, headers: dict[str, str], body: bytes, status: int, title: str
) -> None:
    answer = client.post("/new", content=body, headers=BROWSER | headers)
    page = parse_page(answer.text).one("main")

    assert (answer.status_code, page.one("h1").text) == (status, title)
    assert len(message(page)) == 2
    assert [link.attributes["href"] for link in page.all("a")] == ["/"]


def test_refused_request_of_a_program_is_answered_as_json(client: TestClient) -> None:
    answer = client.get("/runs", headers={"Host": "example.org"})

    assert answer.json()["error"]["message"] == "This studio has a different address."


@pytest.mark.parametrize("path", ["/help/knobs/%3F/x", "/help/knobs/%23/x", "/help/knobs/%25/x"])
def test_address_above_with_special_characters_is_a_link(client: TestClient, path: str) -> None:
    page = client.get(path)

    assert page.status_code == 404
    assert f'href="{path.removesuffix("/x")}"' in page.text
