"""Runs compared by their evaluations: only those that answered the same rows."""

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.settings import Settings
from tests.support import evaluated_runs
from tests.support.factories import make_finished_run
from tests.support.page_reader import Node, parse_page

EXPECTED = [f"Answer {number}" for number in range(30)]
WRONG = ["No"] * 30


def make_run(engine: Engine, settings: Settings, right: int | None, rows: int = 30) -> int:
    """Make a run that answers some rows right, or was not evaluated."""
    with unit_of_work(engine) as db:
        run = make_finished_run(db, adapter={"kind": "lora"})
        evaluated_runs.lay_out(db, settings, run)
        if right is not None:
            tuned = [*EXPECTED[:right], *WRONG[right:]][:rows]
            evaluated_runs.evaluate(db, settings, run.id or 0, WRONG[:rows], tuned, EXPECTED[:rows])
        return run.id or 0


def shown(client: TestClient, *runs: int) -> Node:
    ids = ",".join(map(str, runs))
    return parse_page(client.get(f"/compare?runs={ids}").text).one(id="evaluations")


def test_runs_on_the_same_rows_are_compared_with_the_baseline(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    first, better, same = (make_run(engine, settings, right) for right in (3, 27, 4))
    section = shown(client, first, better, same)
    rows = section.one("table").all("tr")[1:]
    told = section.one("ul").all("li")

    assert "The same 30 rows of starter, version 1" in section.text
    assert [row.all("td")[0].text.split(" %")[0] for row in rows] == ["10", "90", "13.3"]
    assert "Better: 10 % → 90 %" in told[0].text
    assert "No clear difference on 30 rows" in told[1].text
    assert "Of 2 comparisons with the baseline" in section.text


def test_runs_on_other_rows_are_named_and_left_out(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    runs = [
        make_run(engine, settings, 3),
        make_run(engine, settings, 5),
        make_run(engine, settings, 20, rows=20),
        make_run(engine, settings, None),
    ]
    section = shown(client, *runs)

    assert len(section.one("table").all("tr")) == 1 + 2
    assert "Not evaluated on these rows: first try #3 , first try #4" in section.text


def test_nothing_is_shown_without_evaluations(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    runs = [make_run(engine, settings, None) for _ in range(2)]
    page = parse_page(client.get(f"/compare?runs={runs[0]},{runs[1]}").text)

    assert page.all(id="evaluations") == []
