"""Lists without entries say what they are for, and offer the next step as a button."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from tests.support.factories import make_run
from tests.support.page_reader import Node, parse_page


def steps(client: TestClient, path: str) -> list[str]:
    """Return where the buttons of an empty list lead."""
    empty: Node = parse_page(client.get(path).text).one(class_="empty")
    return [
        step.attributes.get("href") or step.attributes["action"]
        for step in (*empty.all("form"), *empty.all("a"))
    ]


@pytest.mark.parametrize("path", ["/compare", "/sweeps", "/reports/precision"])
def test_lists_about_runs_offer_the_quick_try_first(client: TestClient, path: str) -> None:
    assert steps(client, path) == ["/quick-start"]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/sweeps", "/sweeps/new?from=experiment:1"),
        ("/reports/precision", "/reports/precision/new?from=experiment:1"),
    ],
)
def test_lists_about_recipes_offer_to_use_the_newest_one(
    client: TestClient, engine: Engine, path: str, step: str
) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    assert steps(client, path) == [step]
    assert client.get(step).status_code == 200


@pytest.mark.parametrize(
    ("path", "step"), [("/queue", "/new"), ("/help?q=zzz", "/help"), ("/?q=zzz", "/")]
)
def test_other_empty_lists_offer_a_next_step(
    client: TestClient, engine: Engine, path: str, step: str
) -> None:
    if path.startswith("/?"):
        with unit_of_work(engine) as db:
            make_run(db)

    assert step in steps(client, path)
