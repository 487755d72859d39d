"""The command palette finds pages, actions, settings, and what people made, by name."""

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.web.rendering.navigation import NAV_ITEMS
from tests.support.factories import make_finished_run
from tests.support.page_reader import Node, parse_page

AS_PART = {"HX-Request": "true", "HX-Request-Type": "partial"}


def offered(client: TestClient, query: str) -> dict[str, list[str]]:
    """Return what is offered, by group: where each leads, or its words where it leads nowhere."""
    page = parse_page(client.get("/palette", params={"q": query}, headers=AS_PART).text)
    return {
        group.one("h3").text: [one.attributes.get("href", one.text) for one in lines(group)]
        for group in page.all("div", role="group")
    }


def lines(group: Node) -> list[Node]:
    return group.all(role="option")


def test_empty_query_offers_actions_pages_and_newest_runs(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "first")
        make_finished_run(db, "second")

    found = offered(client, "")

    assert list(found) == ["Actions", "Go to", "Runs"]
    assert found["Go to"] == [place.href for place in NAV_ITEMS]
    assert found["Runs"] == ["/runs/2", "/runs/1"]


def test_objects_are_found_by_part_of_name(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "a blue moon")
        make_finished_run(db, "a red sun")

    assert offered(client, "MOON") == {"Runs": ["/runs/1"], "Experiments": ["/experiments/1"]}
    assert offered(client, "starter")["Datasets"] == ["/datasets/1"]
    assert offered(client, "starter")["Models"] == ["/models/1"]


def test_run_is_found_by_number(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "first")
        make_finished_run(db, "second")

    assert offered(client, "#1") == {"Runs": ["/runs/1"]}


def test_settings_are_found_by_description(client: TestClient) -> None:
    found = offered(client, "overfits")

    assert found == {"Recipe settings": ["/help/knobs/optimisation.weight_decay"]}


def test_no_results_message_is_shown(client: TestClient) -> None:
    answer = client.get("/palette?q=zebra", headers=AS_PART)

    assert "No results" in answer.text


def test_names_are_escaped(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "<b>bold</b>")

    assert "<b>bold" not in client.get("/palette?q=bold", headers=AS_PART).text


def test_palette_works_as_page_without_javascript(client: TestClient) -> None:
    page = parse_page(client.get("/palette?q=queue").text)

    assert page.one("h1").text == "Search"
    assert "/queue" in [link.attributes["href"] for link in page.one("main").all("a")]
