"""Claiming, following and settling runs."""

import errno
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from studio.db.session import reading, unit_of_work
from studio.db.tables import Metric, Run, RunStatus, Sample, Worker
from studio.events import Failed, Finished, Sampled, Started, Stopped
from studio.services import queue, runs
from tests.factories import make_run, make_running, progressed


def test_the_oldest_is_claimed_first(db: Session) -> None:
    first, _second = make_run(db, "a"), make_run(db, "b")

    claimed = queue.claim(db, "w", slots=1)
    assert claimed is first
    assert (first.status, first.attempt, first.worker) == (RunStatus.STARTING, 1, "w")


def test_no_more_runs_than_slots(db: Session) -> None:
    for name in ("a", "b", "c"):
        make_run(db, name)

    claims = [queue.claim(db, "w", slots=2) for _ in range(3)]
    assert [run.name if run else None for run in claims] == ["a", "b", None]


def test_many_workers_never_claim_the_same_run(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for i in range(20):
            make_run(db, f"run {i}")

    def claim_all(worker: int) -> list[int | None]:
        claimed: list[int | None] = []
        for _ in range(20):
            with unit_of_work(engine) as db:
                run = queue.claim(db, f"w{worker}", slots=20)
            claimed += [run.id] if run else []
        return claimed

    with ThreadPoolExecutor(4) as workers:
        claimed = [run for part in workers.map(claim_all, range(4)) for run in part]
    assert sorted(claimed, key=lambda run: run or 0) == list(range(1, 21))


def test_positions_count_from_the_front(db: Session) -> None:
    waiting = [make_run(db, name) for name in ("a", "b")]
    live = make_running(db, "c")

    assert [queue.position(db, run) for run in (*waiting, live)] == [1, 2, None]


def test_events_become_numbers(db: Session) -> None:
    run = make_running(db)
    queue.follow(db, run, [progressed(1, loss=2.5, grad_norm=1.0), progressed(2, loss=2.0)], 99)
    db.flush()

    told = db.exec(select(Metric.step, Metric.key, Metric.value)).all()
    assert told == [(1, "loss", 2.5), (1, "grad_norm", 1.0), (2, "loss", 2.0)]
    assert (run.step, run.tokens, run.metrics, run.events_offset) == (
        2,
        200,
        {"loss": 2.0, "grad_norm": 1.0},
        99,
    )


def test_nan_is_kept_as_nan(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_id = make_running(db).id or 0
        queue.follow(db, runs.get(db, run_id), [progressed(1, loss=math.nan)], 1)

    with reading(engine) as db:
        metric = db.exec(select(Metric)).one()
        assert (metric.value, metric.non_finite) == (None, "nan")
        assert math.isnan(runs.get(db, run_id).metrics["loss"])


def test_a_run_starts_when_its_trainer_is_built(db: Session) -> None:
    run = make_run(db)
    queue.claim(db, "w", slots=1)
    queue.follow(db, run, [Started(total_steps=7, resolved={"compute": "bfloat16"})], 1)

    assert (run.status, run.total_steps, run.resolved) == (
        RunStatus.RUNNING,
        7,
        {"compute": "bfloat16"},
    )


def test_answers_are_kept(db: Session) -> None:
    run = make_running(db)
    said = Sampled(stage="before", step=0, position=0, prompt="Hi", reference="Hello", answer="?")
    queue.follow(db, run, [said], 1)
    db.flush()

    sample = db.exec(select(Sample)).one()
    assert (sample.stage, sample.prompt, sample.answer) == ("before", "Hi", "?")


def test_a_finished_run_succeeded(db: Session) -> None:
    run = make_running(db)
    queue.follow(db, run, [Finished(metrics={"eval_loss": 1.5})], 1)
    queue.settle(db, run, 0)

    assert (run.status, run.metrics) == (RunStatus.SUCCEEDED, {"eval_loss": 1.5})


def test_a_failure_is_told_in_words(db: Session) -> None:
    run = make_running(db)
    queue.follow(
        db, run, [Failed(code="disk_full", message="The disk is full.", hint="Free it.")], 1
    )
    queue.settle(db, run, 1)

    assert (run.status, run.error_code, run.error_message, run.error_hint) == (
        RunStatus.FAILED,
        "disk_full",
        "The disk is full.",
        "Free it.",
    )


def test_an_exit_code_tells_of_a_disk_too_full_for_words(db: Session) -> None:
    run = make_running(db)
    queue.settle(db, run, errno.ENOSPC)

    assert (run.error_code, run.error_message, run.error_hint) == (
        "disk_full",
        "The disk is full.",
        "Delete old runs or models, then start the run anew.",
    )


def test_an_exit_code_alone_is_no_success(db: Session) -> None:
    run = make_running(db)
    queue.settle(db, run, 0)

    assert (run.status, run.error_message) == (
        RunStatus.FAILED,
        "The training process ended without a word (exit code 0).",
    )


def test_a_killed_process_hints_at_memory(db: Session) -> None:
    run = make_running(db)
    queue.settle(db, run, -9)

    assert (run.error_code, run.error_message) == ("killed", "The training process was killed.")


@pytest.mark.parametrize("events", [[], [Stopped(step=3)]])
def test_a_stopping_run_ends_cancelled(db: Session, events: list[Stopped]) -> None:
    run = make_running(db)
    runs.cancel(db, run.id or 0)
    queue.follow(db, run, events, 1)
    queue.settle(db, run, -15)

    assert run.status is RunStatus.CANCELLED


def test_a_run_that_finishes_while_stopping_has_succeeded(db: Session) -> None:
    run = make_running(db)
    runs.cancel(db, run.id or 0)
    queue.follow(db, run, [Finished(metrics={})], 1)
    queue.settle(db, run, 0)

    assert run.status is RunStatus.SUCCEEDED


def test_a_final_run_stays_as_it_is(db: Session) -> None:
    run = make_running(db)
    queue.follow(db, run, [Finished(metrics={}), Failed(code="x", message="Too late.")], 1)
    queue.settle(db, run, 1)

    assert (run.status, run.error_message) == (RunStatus.SUCCEEDED, "")


def test_a_silent_worker_is_forgotten(db: Session) -> None:
    queue.beat(db, Worker(name="w", pid=1, slots=2))
    assert queue.slots(db) == 2

    queue.retire(db, "w")
    assert queue.slots(db) == 0


def test_a_run_given_back_waits_again(db: Session) -> None:
    run: Run = make_run(db)
    queue.claim(db, "w", slots=1)
    queue.give_back(db, run)

    assert (run.status, run.worker) == (RunStatus.QUEUED, "")
