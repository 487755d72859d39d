"""Chores, as pages and programs see them."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tasks import Export
from studio.protocols.events import Failed, PhaseChanged
from studio.services.queue import overview
from studio.services.tasks import tasks
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page


@pytest.fixture
def chore(engine: Engine) -> int:
    """Ask for a chore that is half done."""
    with unit_of_work(engine) as db:
        chore = tasks.enqueue(db, "fetch", "dataset:3", {"source": {}})
        tasks.start_work(chore)
        tasks.apply_work_events(chore, [PhaseChanged(name="copying", share=0.5)], 1, "fetch")
        return chore.id or 0


def fail(engine: Engine, chore: int) -> None:
    with unit_of_work(engine) as db:
        why = Failed(code="invalid", message="It cannot be read.", hint="Mend it.")
        tasks.fail_work(tasks.get(db, chore), why)


def test_task_is_named_in_the_language_of_the_page(client: TestClient, chore: int) -> None:
    page = client.get(f"/chores/{chore}", headers={"Accept-Language": "zh"}).text

    assert parse_page(page).one("h1").text == "下载文件"
    assert parse_page(page).one("strong").text == "下载文件"


def test_duplicate_task_returns_existing_one(engine: Engine, chore: int) -> None:
    with unit_of_work(engine) as db:
        again = tasks.enqueue(db, "fetch", "dataset:3", {})
        other = tasks.enqueue(db, "fetch", "dataset:4", {})
        assert (again.id, other.id) == (chore, chore + 1)


def test_api_reports_task_progress(client: TestClient, chore: int) -> None:
    told = client.get(f"/api/v1/chores/{chore}").json()

    assert (told["status"], told["phase"], told["progress"], told["title"], told["error"]) == (
        "running",
        "copying",
        0.5,
        "Downloading a file",
        None,
    )


def test_api_cancels_task_once(client: TestClient, chore: int) -> None:
    first = client.delete(f"/api/v1/chores/{chore}")
    second = client.delete(f"/api/v1/chores/{chore}")

    assert (first.json()["status"], second.status_code, second.json()["error"]["message"]) == (
        "cancelled",
        409,
        "Downloading a file has already ended: cancelled.",
    )


def test_failed_task_shows_error_and_hint(client: TestClient, engine: Engine, chore: int) -> None:
    fail(engine, chore)

    assert client.get(f"/api/v1/chores/{chore}").json()["error"] == {
        "code": "invalid",
        "message": "It cannot be read.",
        "hint": "Mend it.",
    }
    drawn = parse_page(client.get(f"/chores/{chore}").text).one(role="alert")
    assert drawn.text == "It cannot be read. Mend it."


def test_only_failed_task_can_be_retried(client: TestClient, engine: Engine, chore: int) -> None:
    early = client.post(f"/api/v1/chores/{chore}/again")
    fail(engine, chore)
    again = client.post(f"/api/v1/chores/{chore}/again")

    assert (early.status_code, again.json()["status"], again.json()["error"]) == (
        409,
        "queued",
        None,
    )


def test_page_polls_until_task_ends(client: TestClient, engine: Engine, chore: int) -> None:
    shown = {"HX-Request-Type": "partial"}
    going = parse_page(client.get(f"/chores/{chore}?then=/datasets", headers=shown).text)
    fail(engine, chore)
    ended = parse_page(client.get(f"/chores/{chore}?then=/datasets", headers=shown).text)

    asks = [page.all("div", **{"hx-trigger": "every 1s"}) for page in (going, ended)]
    assert [[one.attributes["hx-get"] for one in some] for some in asks] == [
        [f"/chores/{chore}?then=/datasets"],
        [],
    ]


def test_external_redirect_targets_are_rejected(client: TestClient, chore: int) -> None:
    refused = [
        client.get(f"/chores/{chore}", params={"then": there}).status_code
        for there in ("//evil.example/", "https://evil.example/", "/\\evil.example")
    ]
    assert refused == [422, 422, 422]


def test_cancelling_redirects_back(client: TestClient, chore: int) -> None:
    came = {"Referer": "http://testserver//datasets"}
    answer = client.post(f"/chores/{chore}/cancel", headers=came, follow_redirects=False)

    assert answer.headers["location"] == "/datasets"


def test_queue_lists_tasks_and_exports(client: TestClient, engine: Engine, chore: int) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db).id or 0
        db.add(Export(run_id=run, kind="merged", dtype="bfloat16"))
    rows = parse_page(client.get("/queue").text).one(id="others").one("tbody").all("tr")

    # Behind why it waits stands for how long, once that is a second.
    assert [(row.one("th").text, row.all("td")[1].text.partition(",")[0]) for row in rows] == [
        ("Downloading a file dataset 3", "copying"),
        ("Export of first try #1, merged in bfloat16", "Waiting for a worker: none is running"),
    ]
    assert chore == 1


def test_ended_task_leaves_queue(client: TestClient, engine: Engine, chore: int) -> None:
    fail(engine, chore)

    assert parse_page(client.get("/queue/others").text).one(id="others").text == ""


def test_only_running_task_takes_slot(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        chore = tasks.enqueue(db, "calibrate", "x", {})
        waiting = overview.list_work(db)[0].takes_slot
        tasks.start_work(chore)
        running = overview.list_work(db)[0].takes_slot

    assert (waiting, running) == (False, True)
