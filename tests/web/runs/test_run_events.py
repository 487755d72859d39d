"""The history of a run: typed over REST, in words on its page, live on its stream."""

import json
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.commands import docs
from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.protocols.events import (
    AlarmRaised,
    Checkpointed,
    Failed,
    Finished,
    Paused,
    Resumed,
    Started,
)
from studio.services.queue import queue
from studio.services.runs import attempts, run_commands, run_events, states
from studio.services.runs.attempts import AttemptOwner
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.web.api.runs import event_streams
from tests.support.factories import make_run, make_running
from tests.support.page_reader import parse_page

HERE = Settings(home=Path("nowhere"))
ALARM = AlarmRaised(code="zero_loss", message="The loss is exactly zero.", hint="Look.", step=4)


def taken(db: Session, run: Run) -> AttemptOwner:
    """Have a worker take the run and begin to train it."""
    assert queue.claim(db, "worker-1", 1) is run
    attempts.apply_events(db, run, [Started(total_steps=10, resolved={})], 1)
    return AttemptOwner("worker-1", run.attempt)


def lived_through(db: Session) -> Run:
    """Make a run that all befell that can befall a run."""
    run = make_run(db)
    number = run.id or 0
    queue.hold(db, number, is_held=True)
    queue.hold(db, number, is_held=False)
    queue.set_priority(db, number, 5)
    queue.move(db, number, 1)
    taken(db, run)
    run_commands.pause(db, number)
    attempts.apply_events(db, run, [Checkpointed(step=2, bytes=9, seconds=1), Paused(step=2)], 2)
    attempts.close_exited(db, run, ProcessExit(exit_code=0))
    run_commands.resume(db, number)
    taken(db, run)
    attempts.apply_events(db, run, [Resumed(step=2, attempt=2), ALARM], 3)
    attempts.fail(db, run, Failed(code="killed", message="It was killed.", hint="Look."))
    attempts.close_exited(db, run, ProcessExit(exit_code=-9))
    run_commands.retry(db, number)
    taken(db, run)
    attempts.apply_events(db, run, [Finished(metrics={})], 4)
    attempts.close_exited(db, run, ProcessExit(exit_code=0))
    return run


STORY = [
    ("queued", "Added to the queue."),
    ("held", "Held until it is released."),
    ("released", "Released."),
    ("prioritised", "Priority set to 5."),
    ("moved", "Moved to position 1 within its priority."),
    ("starting", "Claimed by a worker, attempt 1."),
    ("running", "Started training."),
    ("stopping", "Asked to pause."),
    ("checkpointed", "Wrote a checkpoint at step 2."),
    ("paused", "Paused at step 2."),
    ("queued", "Added to the queue."),
    ("starting", "Claimed by a worker, attempt 2."),
    ("running", "Started training."),
    ("resumed", "Resumed from step 2."),
    ("alarm", "The loss is exactly zero. Seen at step 4."),
    ("failed", "It was killed."),
    ("queued", "Added to the queue."),
    ("starting", "Claimed by a worker, attempt 3."),
    ("running", "Started training."),
    ("succeeded", "Done."),
]


def events(client: TestClient) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = client.get("/api/v1/runs/1/events").json()["data"]
    return told


def test_events_cover_whole_life_of_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        lived_through(db)

    assert [(event["kind"], event["words"]) for event in events(client)] == STORY


def test_each_event_kind_has_its_data(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        lived_through(db)

    facts = {event["kind"]: event["data"] for event in events(client)}
    assert facts["failed"] == {"code": "killed", "message": "It was killed.", "hint": "Look."}
    assert facts["alarm"] == {
        "code": "zero_loss",
        "message": "The loss is exactly zero.",
        "hint": "Look.",
        "step": 4,
        "module": "",
    }
    assert facts["resumed"] == {"step": 2, "attempt": 2}


def test_requeued_run_shows_reason(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db)
        taken(db, run)
        attempts.close_exited(db, run, ProcessExit(exit_code=-9))

    assert events(client)[-1]["words"] == (
        "Back in the queue. The training process was killed from outside the studio (SIGKILL)."
    )


def test_unknown_event_kind_is_shown_as_is(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        states.record_event(db, make_run(db), "sent_to_the_moon", {"speed": 3})

    assert {name: events(client)[-1][name] for name in ("kind", "data", "words")} == {
        "kind": "sent_to_the_moon",
        "data": {"speed": 3},
        "words": "Sent to the moon.",
    }


def test_api_schema_lists_event_kinds() -> None:
    schemas = json.loads(docs.openapi())["components"]["schemas"]
    known = {kind for kind, _words in STORY} | {"cancelled"}
    told = {
        schema["properties"]["kind"]["const"]
        for schema in schemas.values()
        if "const" in schema.get("properties", {}).get("kind", {})
    }

    assert known <= told


def test_page_lists_events_newest_first(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        lived_through(db)

    story = parse_page(client.get("/runs/1/details").text).one("ol", class_="story")
    assert [line.all("span")[1].text for line in story.all("li")] == [
        words for _kind, words in reversed(STORY)
    ]


def test_page_lists_each_attempt(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        lived_through(db)

    rows = parse_page(client.get("/runs/1/parts/history").text).one("tbody").all("tr")
    told = [[cell.text for cell in row.all("td")] for row in rows]
    assert [(row[0], row[1], row[4]) for row in told] == [
        ("paused", "0", "worker-1"),
        ("failed", "2", "worker-1"),
        ("succeeded", "0", "worker-1"),
    ]


def test_attempt_killed_without_report_shows_signal(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db)
        taken(db, run)
        attempts.close_exited(db, run, ProcessExit(exit_code=-9))

    [row] = parse_page(client.get("/runs/1/parts/history").text).one("tbody").all("tr")
    assert row.all("td")[0].text == "lost: killed by SIGKILL"


def test_only_last_attempt_of_live_run_is_in_progress(client: TestClient, engine: Engine) -> None:
    """The process of the first was still leaving when the second began, so nobody closed it."""
    with unit_of_work(engine) as db:
        run = make_run(db)
        taken(db, run)
        run_commands.pause(db, run.id or 0)
        attempts.apply_events(db, run, [Paused(step=2)], 2)
        run_commands.resume(db, run.id or 0)
        taken(db, run)

    rows = parse_page(client.get("/runs/1/parts/history").text).one("tbody").all("tr")
    assert [row.all("td")[0].text for row in rows] == ["end not recorded", "in progress"]


def test_consecutive_checkpoints_are_shown_as_one_line(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        made = [Checkpointed(step=step, bytes=9, seconds=1) for step in (1, 2, 3)]
        attempts.apply_events(db, make_running(db), made, 1)

    story = parse_page(client.get("/runs/1/parts/history").text).one("ol", class_="story")
    assert story.all("li")[0].all("span")[1].text == (
        "Wrote a checkpoint at step 3. The last of 3 in a row."
    )


def test_stream_sends_each_event_once(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_id = make_run(db).id or 0
    viewer, first = event_streams.read_news(
        engine, HERE, event_streams.StreamState(run_id, event_streams.StreamPosition())
    )
    with unit_of_work(engine) as db:
        queue.set_priority(db, run_id, 5)
    _viewer, then = event_streams.read_news(engine, HERE, viewer)

    def kinds(told: list[Any]) -> list[str]:
        return [
            one["kind"]
            for event in told
            if event.event == "event"
            for one in json.loads(event.raw_data)
        ]

    assert (kinds(first), kinds(then)) == (["queued"], ["prioritised"])


def test_old_event_id_format_is_accepted() -> None:
    assert event_streams.parse_position("7.20") == event_streams.StreamPosition(metric=7, log=20)


def test_every_run_status_has_event_type() -> None:
    assert set(run_events._EVENT_KINDS) >= {status.value for status in states.TRANSITIONS}
