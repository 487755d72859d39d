"""What ended since a browser last looked: the result or the reason, and what to do next."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.states import RunStatus, SweepStatus
from studio.db.tables import Run, Study, Sweep
from studio.protocols.events import Event, Failed, Finished
from studio.recipe.search_space import SEARCH_SPACE_ADAPTER
from studio.services.recent_ends import MAX_LISTED
from studio.services.runs import attempts, run_commands, runs, states
from studio.web.runs.seen_runs import COOKIE
from tests.support.factories import (
    make_finished_run,
    make_recipe,
    make_run,
    make_running,
    metrics_event,
)
from tests.support.page_reader import Node, parse_page

OUT_OF_MEMORY = Failed(code="out_of_memory", message="It did not fit.", hint="Use less.")


def listed(client: TestClient) -> list[Node]:
    return parse_page(client.get("/").text).one(id="ended").all("li")


def names(client: TestClient) -> list[str]:
    return [item.one("h3").one("a").text for item in listed(client)]


def dismiss(client: TestClient, item: Node) -> None:
    form = next(form for form in item.all("form") if form.attributes["action"] == "/runs/seen")
    client.post("/runs/seen", data={"key": form.one("input").attributes["value"]})


def test_finished_run_shows_result_and_comparison(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, "tone")
        logged = [metrics_event(step, eval_loss=loss) for step, loss in ((1, 3.5), (2, 1.25))]
        attempts.apply_events(db, run, [*logged, Finished(metrics={})], 10)

    (item,) = listed(client)
    assert item.one(class_="ended-result").text == "Validation loss 3.5 → 1.25"
    assert "/compare?runs=1" in [link.attributes["href"] for link in item.all("a")]


def test_result_worse_than_the_start_is_called_worse(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        logged = [metrics_event(step, eval_loss=loss) for step, loss in ((1, 3.5), (2, 70.0))]
        attempts.apply_events(db, run, [*logged, Finished(metrics={})], 10)

    (item,) = listed(client)
    assert item.one(class_="ended-result").text == "Validation loss 3.5 → 70 worse"


def test_result_is_what_the_method_is_judged_by(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        run.recipe = make_recipe(method="classify")
        told = ((1, 3.5, 0.1), (2, 3.8, 0.4))
        logged = [metrics_event(step, eval_loss=loss, eval_macro_f1=f1) for step, loss, f1 in told]
        attempts.apply_events(db, run, [*logged, Finished(metrics={})], 10)

    (item,) = listed(client)
    words = item.one(class_="ended-result").text
    assert words.startswith("Validation macro F1 ")
    assert "worse" not in words


def test_failed_run_shows_reason_and_first_fix(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.fail(db, make_running(db), OUT_OF_MEMORY)

    (item,) = listed(client)
    fix = item.one("form", action="/runs/1/again")
    assert item.one(class_="ended-result").text == "It did not fit."
    assert fix.one("button").text.startswith("Run again with batch size")
    assert all(field.attributes["value"] for field in fix.all("input"))


def test_only_ends_that_are_news_are_listed(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db, "still training")
        states.move(db, make_run(db, "mistake"), RunStatus.CANCELLED)
        make_finished_run(db, "old").finished_at = datetime.now(UTC) - timedelta(days=2)
        make_finished_run(db, "archived").archived_at = datetime.now(UTC)
        make_finished_run(db, "new")

    assert names(client) == ["new"]


def test_list_stays_until_it_is_dismissed(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "done")

    assert [names(client) for _ in range(2)] == [["done"], ["done"]]
    dismiss(client, listed(client)[0])
    assert names(client) == []


def test_run_whose_page_was_opened_is_no_news(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for name in ("opened", "not opened"):
            make_finished_run(db, name)

    client.get("/runs/1")
    assert names(client) == ["not opened"]


def test_dismissing_one_run_keeps_the_others(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for name in ("first", "second"):
            make_finished_run(db, name)

    dismiss(client, listed(client)[0])
    assert names(client) == ["first"]


def test_dismissing_all_keeps_runs_that_ended_since_the_page_was_shown(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "shown")
    shown = parse_page(client.get("/").text).one(id="ended")
    with unit_of_work(engine) as db:
        make_finished_run(db, "ended in the meantime")

    until = shown.one("input", name="until").attributes["value"]
    client.post("/runs/seen", data={"until": until})
    assert names(client) == ["ended in the meantime"]


def test_restarted_run_is_news_when_it_ends_again(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.fail(db, make_running(db, "restarted"), OUT_OF_MEMORY)
    dismiss(client, listed(client)[0])
    with unit_of_work(engine) as db:
        run = run_commands.restart(db, 1)
        states.move(db, run, RunStatus.STARTING)
        attempts.fail(db, run, OUT_OF_MEMORY)
        run.finished_at = datetime.now(UTC) + timedelta(seconds=2)

    assert names(client) == ["restarted"]


def test_more_ends_than_fit_are_counted(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for number in range(MAX_LISTED + 2):
            make_finished_run(db, f"run {number}")

    ended = parse_page(client.get("/").text).one(id="ended")
    more = ended.all("a")[-1]
    assert (len(ended.all("li")), more.text) == (MAX_LISTED, "2 more ended")
    assert f"{MAX_LISTED + 2} runs" in client.get(more.attributes["href"]).text


def make_sweep(db: Session, runs: Sequence[Run], **changes: Any) -> Sweep:  # noqa: ANN401 -- any column
    """Make a finished sweep of runs over the seed."""
    about: dict[str, Any] = {
        "recipe": make_recipe(),
        "space": SEARCH_SPACE_ADAPTER.validate_python({"seed": {"values": [1, 2]}}),
        "strategy": "grid",
        "count": len(runs),
        "status": SweepStatus.FINISHED,
        "finished_at": datetime.now(UTC),
    }
    sweep = Sweep(experiment_id=1, name="seeds", **about | changes)
    db.add(sweep)
    db.flush()
    for trial, run in enumerate(runs):
        run.sweep_id, run.trial = sweep.id, trial
    return sweep


def make_study(db: Session, runs: Sequence[Run]) -> Study:
    study = Study(experiment_id=1, name="formats", modes=["fp32"], seeds=[0])
    db.add(study)
    db.flush()
    for run in runs:
        run.study_id = study.id
    return study


def test_finished_sweep_counts_its_runs_and_names_the_best(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        good, bad = make_running(db), make_running(db)
        done: list[Event] = [metrics_event(1, eval_loss=0.5), Finished(metrics={})]
        attempts.apply_events(db, good, done, 10)
        attempts.fail(db, bad, OUT_OF_MEMORY)
        make_sweep(db, [good, bad])

    (item,) = listed(client)
    assert item.one("h3").text == "seeds Sweep 1"
    assert item.one(class_="ended-result").text.startswith(
        "1 run succeeded, 1 failed Best validation loss 0.5"
    )
    assert "/sweeps/1" in [link.attributes["href"] for link in item.all("a")]


def test_failed_sweep_says_why(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
        make_sweep(db, [], status=SweepStatus.FAILED, error="Nothing fits.")

    (item,) = listed(client)
    assert "failed" in item.one(class_="ended-name").text
    assert item.one(class_="ended-result").text == "Nothing fits."


def test_sweep_that_runs_or_was_stopped_is_no_news(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
        make_sweep(db, [make_finished_run(db)], status=SweepStatus.RUNNING, finished_at=None)
        make_sweep(db, [make_finished_run(db)], status=SweepStatus.STOPPED)

    assert parse_page(client.get("/").text).one(id="ended").text == ""


def test_study_is_news_once_its_last_run_has_ended(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        last = make_running(db)
        make_study(db, [make_finished_run(db), last])
    assert parse_page(client.get("/").text).one(id="ended").text == ""
    with unit_of_work(engine) as db:
        attempts.fail(db, runs.get(db, last.id or 0), OUT_OF_MEMORY)

    (item,) = listed(client)
    assert item.one("h3").text == "formats Precision study 1"
    assert item.one(class_="ended-result").text == "1 run succeeded, 1 failed"


def test_study_without_a_result_has_failed(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.fail(db, run, OUT_OF_MEMORY)
        make_study(db, [run])

    (item,) = listed(client)
    assert "failed" in item.one(class_="ended-name").text
    assert "See why" in [link.text for link in item.all("a")]


@pytest.mark.parametrize("path", ["/sweeps/1", "/reports/precision/1"])
def test_sweep_or_study_whose_page_was_opened_is_no_news(
    client: TestClient, engine: Engine, path: str
) -> None:
    with unit_of_work(engine) as db:
        make_sweep(db, [make_finished_run(db)])
        make_study(db, [make_finished_run(db)])

    client.get(path)
    assert len(listed(client)) == 1


def test_sweep_and_study_are_dismissed_one_by_one(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_sweep(db, [make_finished_run(db)])
        make_study(db, [make_finished_run(db)])

    dismiss(client, listed(client)[0])
    dismiss(client, listed(client)[0])
    assert parse_page(client.get("/").text).one(id="ended").text == ""


@pytest.mark.parametrize("value", ["", "nonsense", "1:2-3..4-5", "9" * 5000, "9" * 12 + ":", "-5:"])
def test_damaged_cookie_is_ignored(client: TestClient, engine: Engine, value: str) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "done")
    client.cookies.set(COOKIE, value)

    assert names(client) == ["done"]
