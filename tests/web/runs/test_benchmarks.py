"""Benchmarks of runs: asked for on the page and over REST, shared, compared, deleted."""

import sys
from collections.abc import Mapping, Sequence

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from studio.db.benchmarks import Benchmark, ScoreSet
from studio.db.session import unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.protocols.benchmarks import BenchmarkResult, MetricScores
from studio.protocols.events import Failed
from studio.services.evaluations import score_sets
from studio.services.queue import task_results
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.support.factories import make_running
from tests.support.page_reader import parse_page
from tests.web.runs.test_evaluations import error_of, make_run

API = "/api/v1/runs/1/benchmarks"
N = 20
RIGHT = [1.0] * N
WRONG = [0.0] * N


@pytest.fixture
def run(engine: Engine, settings: Settings) -> int:
    """Make a run that has saved a model."""
    return make_run(engine, settings)


def finish(
    engine: Engine, base: Mapping[str, Sequence[float]], tuned: Mapping[str, Sequence[float]]
) -> None:
    """End the tasks of the newest benchmark: each metric with what each row scored."""
    with unit_of_work(engine) as db:
        benchmark = db.exec(select(Benchmark).order_by(col(Benchmark.id).desc())).first()
        assert benchmark is not None
        for set_id, scores in ((benchmark.base_id, base), (benchmark.tuned_id, tuned)):
            end_task(db, set_id, scores)


def end_task(db: Session, set_id: int, scores: Mapping[str, Sequence[float]]) -> None:
    task = tasks.latest(db, score_sets.KIND, f"scores:{set_id}")
    assert task is not None
    result = BenchmarkResult(
        scores={
            key: MetricScores(
                stderr=0.05, rows={f"piqa {row}": (one, 1.0) for row, one in enumerate(values)}
            )
            for key, values in scores.items()
        },
        signature="version:1.0|examples:0|chat:yes|lm-eval:0.4.13",
        computed_in="float32",
    )
    with task_results.notify_on_end(db, task):
        task.result = result.model_dump(mode="json")
        tasks.close_work(task, TaskStatus.SUCCEEDED)


def count_waiting(engine: Engine) -> int:
    with unit_of_work(engine) as db:
        return len(db.exec(select(Task).where(col(Task.kind) == score_sets.KIND)).all())


def test_page_asks_and_shows_progress(client: TestClient, engine: Engine, run: int) -> None:
    section = parse_page(client.get(f"/runs/{run}/evaluation").text).one(id="benchmarks")
    form = section.one("form", action=f"/runs/{run}/benchmarks")
    answer = client.post(form.attributes["action"], data={"source": "suite:piqa", "rows": "20"})
    section = parse_page(answer.text).one(id="benchmarks")

    sources = [one.attributes["value"] for one in form.all("option")]
    assert {"suite:gsm8k", "suite:mmlu", "dataset:starter"} <= set(sources)
    assert answer.url.path == f"/runs/{run}/evaluation"
    assert [one.attributes["aria-label"] for one in section.all("progress")] == [
        "Progress of starter",
        "Progress of run 1",
    ]
    assert count_waiting(engine) == 2
    part = section.one("div", **{"hx-trigger": "every 1s"}).attributes["hx-get"]
    assert "Progress of run 1" in client.get(part).text


def test_verdict_and_metrics_are_shown(client: TestClient, engine: Engine, run: int) -> None:
    client.post(API, json={"suite": "piqa", "rows": N})
    finish(
        engine,
        {"accuracy": WRONG, "accuracy_by_length": WRONG},
        {"accuracy": RIGHT, "accuracy_by_length": [*WRONG[:-1], 1.0]},
    )
    section = parse_page(client.get(f"/runs/{run}/evaluation").text).one(id="benchmarks")
    rows = {row.one("th").text: row.text for row in section.one("table").all("tr")[1:]}
    (told,) = client.get(API).json()["data"]

    verdict = "Better: 0 % → 100 % right answers on 20 rows (by 100 to 100 points)."
    assert verdict in section.text
    assert "better" in rows["Accuracy decides"]
    assert "may be chance" in rows["Accuracy for the length"]
    assert (told["title"], told["verdict"], told["suite"]) == ("PIQA", verdict, "piqa")
    first, second = told["metrics"]
    assert (first["key"], first["decides"], second["decides"]) == ("accuracy", True, False)
    assert first["comparison"]["only_second"] == N
    assert first["tuned"]["value"] == 1.0
    assert first["tuned"]["low"] == pytest.approx(0.839, abs=1e-3)
    assert (first["tuned"]["n"], first["tuned"]["stderr"]) == (N, 0.05)
    assert not section.all("div", **{"hx-trigger": "every 1s"})


def test_rows_without_a_common_score_give_no_verdict(
    client: TestClient, engine: Engine, run: int
) -> None:
    client.post(API, json={"suite": "piqa", "rows": N})
    finish(engine, {"accuracy": []}, {"accuracy": RIGHT})

    assert client.get(API).json()["data"][0]["verdict"] == "No row could be scored."
    assert "No row could be scored." in client.get(f"/runs/{run}/evaluation").text


def test_benchmark_is_made_over_rest_and_deleted(
    client: TestClient, engine: Engine, run: int
) -> None:
    made = client.post(f"/api/v1/runs/{run}/benchmarks", json={"dataset": "starter"})
    number = made.json()["id"]
    finish(engine, {"exact": WRONG}, {"exact": RIGHT})
    told = client.get(f"{API}/{number}").json()
    gone = client.delete(f"{API}/{number}")

    assert made.status_code == 202
    assert [made.json()[side]["status"] for side in ("base", "tuned")] == ["queued", "queued"]
    assert (told["title"], told["dataset"], told["rows"]) == ("starter, version 1", "starter", 100)
    assert (told["base"]["status"], told["computed_in"]) == ("succeeded", "float32")
    assert gone.status_code == 204
    assert error_of(client.get(f"{API}/{number}"))[:2] == (404, "not_found")
    with unit_of_work(engine) as db:
        assert not db.exec(select(ScoreSet)).all()


def test_page_deletes_a_benchmark(client: TestClient, run: int) -> None:
    number = client.post(API, json={"suite": "piqa"}).json()["id"]
    client.post(f"/runs/{run}/benchmarks/{number}/delete")

    assert client.get(API).json()["data"] == []


@pytest.mark.usefixtures("run")
def test_equal_benchmark_is_not_made_twice(client: TestClient, engine: Engine) -> None:
    first, second, other = (
        client.post(API, json={"suite": "piqa", "rows": rows}).json()["id"] for rows in (20, 20, 30)
    )

    assert (first == second, first == other) == (True, False)
    assert count_waiting(engine) == 4


def test_base_is_measured_once_for_all_runs(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    client.post(f"/api/v1/runs/{run}/benchmarks", json={"suite": "piqa"})
    finish(engine, {"accuracy": WRONG}, {"accuracy": RIGHT})
    other = make_run(engine, settings, adapter={"kind": "lora", "r": 2})
    told = client.post(f"/api/v1/runs/{other}/benchmarks", json={"suite": "piqa"}).json()

    assert (told["base"]["status"], told["tuned"]["status"]) == ("succeeded", "queued")


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        ({}, "invalid", "A benchmark needs either a suite or a dataset."),
        (
            {"suite": "piqa", "dataset": "starter"},
            "invalid",
            "A benchmark needs either a suite or a dataset.",
        ),
        ({"suite": "iq"}, "invalid", "There is no suite iq."),
        ({"dataset": "none"}, "invalid", "There is no dataset named none."),
    ],
)
@pytest.mark.usefixtures("run")
def test_what_cannot_be_asked_is_refused(
    client: TestClient, asked: dict[str, str], code: str, message: str
) -> None:
    assert error_of(client.post(API, json=asked)) == (422, code, message)


@pytest.mark.usefixtures("run")
def test_page_of_a_strange_source_says_what_to_choose(client: TestClient) -> None:
    answer = client.post("/runs/1/benchmarks", data={"source": "file:/etc/passwd"})

    assert answer.status_code == 422
    assert "A benchmark needs either a suite or a dataset." in answer.text


def test_failure_is_explained_and_tried_again(client: TestClient, engine: Engine, run: int) -> None:
    asked = {"dataset": "starter", "rows": 7, "max_new_tokens": 9}
    number = client.post(API, json=asked).json()["id"]
    with unit_of_work(engine) as db:
        for task in tasks.list_waiting(db, Task):
            tasks.fail_work(task, Failed(code="invalid", message="It broke.", hint="Mend it."))
    section = parse_page(client.get(f"/runs/{run}/evaluation").text).one(id="benchmarks")
    form = next(
        one
        for one in section.all("form", action=f"/runs/{run}/benchmarks")
        if "Try again" in one.text
    )
    fields = {one.attributes["name"]: one.attributes["value"] for one in form.all("input")}
    client.post(form.attributes["action"], data=fields)
    (again,) = client.get(API).json()["data"]

    assert "It broke. Mend it." in section.text
    assert (again["id"], again["base"]["status"]) == (number, "queued")


def test_run_without_model_says_when_it_can_be_measured(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        number = make_running(db).id
    section = parse_page(client.get(f"/runs/{number}/evaluation").text).one(id="benchmarks")

    assert "It can be evaluated once it has succeeded." in section.text
    answer = client.post(f"/api/v1/runs/{number}/benchmarks", json={"suite": "piqa"})
    assert error_of(answer)[:2] == (409, "conflict")


def test_without_lm_eval_the_page_says_how_to_install_it(
    client: TestClient, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    section = parse_page(client.get(f"/runs/{run}/evaluation").text).one(id="benchmarks")
    answer = client.post(API, json={"suite": "piqa"})

    assert "pip install 'mantissa-studio[benchmarks]'" in section.text
    assert not section.all("form")
    assert error_of(answer)[:2] == (503, "unavailable")
    assert "mantissa-studio[benchmarks]" in answer.json()["error"]["hint"]


def test_offline_suites_are_listed_and_cannot_be_chosen(
    client: TestClient, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    section = parse_page(client.get(f"/runs/{run}/evaluation").text).one(id="benchmarks")
    options = {one.attributes["value"]: one.attributes for one in section.all("option")}

    assert "disabled" in options["suite:gsm8k"]
    assert "disabled" not in options["dataset:starter"]
    assert "this studio is in offline mode" in section.text
    assert error_of(client.post(API, json={"suite": "gsm8k"}))[:2] == (503, "unavailable")
    assert client.post(API, json={"dataset": "starter"}).status_code == 202


def test_deleting_a_run_deletes_its_scores(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    client.post(API, json={"suite": "piqa"})
    with unit_of_work(engine) as db:
        runs.delete(db, run, settings.runs)
    with unit_of_work(engine) as db:
        score_sets.delete_unused(db)
    with unit_of_work(engine) as db:
        assert db.exec(select(ScoreSet)).all() == []
        told = db.exec(select(Task.status).where(Task.kind == score_sets.KIND)).all()
        assert set(told) == {TaskStatus.CANCELLED}


def test_result_of_a_deleted_benchmark_is_dropped(
    client: TestClient, engine: Engine, run: int
) -> None:
    made = client.post(f"/api/v1/runs/{run}/benchmarks", json={"suite": "piqa"}).json()
    client.delete(f"{API}/{made['id']}")
    with unit_of_work(engine) as db:
        (first, _second) = db.exec(select(Task).where(Task.kind == score_sets.KIND)).all()
        score_sets.on_task_end(db, first, {"scores": {}})

    assert client.get(API).json()["data"] == []
