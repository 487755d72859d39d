"""The menu of every page: its groups, the current page, and the numbers of runs."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from tests.support.factories import make_finished_run, make_run, make_running
from tests.support.page_reader import Node, parse_page


def menu(client: TestClient, path: str = "/") -> Node:
    return parse_page(client.get(path).text).one("nav", **{"aria-label": "Main"})


def counts(page: Node) -> dict[str, str]:
    """Return the number of runs beside each page of the menu that shows one."""
    badges = page.one(class_="side").all("span", class_="nav-count")
    return {badge.attributes["data-count"]: badge.text for badge in badges}


def test_menu_groups_pages_by_what_people_do(client: TestClient) -> None:
    groups = {
        group.one("p").text: [link.text for link in group.all("a")]
        for group in menu(client).all("div", class_="nav-group")
    }

    assert groups == {
        "Build": ["New", "Data", "Models", "Playground", "Graders", "Serve"],
        "Track": ["Runs", "Compare", "Sweeps", "Precision studies", "Number formats"],
        "System": ["Queue", "Settings", "Help"],
    }


@pytest.mark.parametrize(
    ("path", "label"),
    [("/", "Runs"), ("/settings/log", "Settings"), ("/failures", "Help"), ("/models", "Models")],
)
def test_menu_marks_current_page(client: TestClient, path: str, label: str) -> None:
    current = menu(client, path).all("a", **{"aria-current": "page"})

    assert [link.text for link in current] == [label]


def test_small_screens_have_three_pages_and_a_button_for_the_rest(client: TestClient) -> None:
    page = parse_page(client.get("/").text)
    dock = page.one("nav", class_="dock")
    button = dock.one("button")

    assert [link.text for link in dock.all("a")] == ["Runs", "New", "Data"]
    assert page.one(id=button.attributes["popovertarget"]).all("nav", **{"aria-label": "Main"})


def test_menu_counts_running_and_waiting_runs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)
        make_finished_run(db)
        for _ in range(2):
            make_run(db)

    page = parse_page(client.get("/help").text)
    assert counts(page) == {"running": "1 running", "waiting": "2 waiting"}


def test_menu_shows_no_number_when_nothing_runs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)

    assert counts(parse_page(client.get("/help").text)) == {"running": "", "waiting": ""}


def test_status_of_worker_brings_new_counts(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    answer = client.get("/worker", headers={"HX-Request-Type": "partial"})
    parts = {
        part.attributes["hx-target"]: part.text
        for part in parse_page(answer.text).all("hx-partial")
    }
    assert parts == {
        ".nav-count[data-count=running]": "1 running",
        ".nav-count[data-count=waiting]": "",
    }
