"""One attempt at a run: followed, fenced, settled, and tried again where that may help."""

import errno
import math
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunCommand, RunStatus
from studio.db.tables import Metric, Run, Sample
from studio.protocols.events import (
    Checkpointed,
    Failed,
    Finished,
    Paused,
    Resumed,
    Sampled,
    Started,
    Stopped,
)
from studio.services.queue import queue
from studio.services.runs import attempts, run_commands, runs
from studio.services.runs.attempts import AttemptOwner, LeaseLostError
from studio.services.tasks.exit_diagnosis import ProcessExit
from tests.support.factories import make_run, make_running, metrics_event

KILLED = ProcessExit(exit_code=-9)
BEGUN = Started(total_steps=10, resolved={})


def claimed(db: Session, worker: str = "w") -> Run:
    """Claim the next run, and have it say that it trains."""
    run = queue.claim(db, worker, slots=100)
    assert run is not None
    attempts.record_process(run, "7@1.0@boot")
    attempts.apply_events(db, run, [BEGUN], run.events_offset + 1)
    return run


def test_metric_events_become_metric_rows(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(
        db, run, [metrics_event(1, loss=2.5, grad_norm=1.0), metrics_event(2, loss=2.0)], 99
    )
    db.flush()

    query = select(Metric.step, Metric.key, Metric.value).order_by(col(Metric.id))
    told = db.exec(query).all()
    assert told == [(1, "loss", 2.5), (1, "grad_norm", 1.0), (2, "loss", 2.0)]
    assert (run.step, run.tokens, run.metrics, run.events_offset) == (
        2,
        200,
        {"loss": 2.0, "grad_norm": 1.0},
        99,
    )


def test_nan_is_stored_as_nan(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_id = make_running(db).id or 0
        attempts.apply_events(db, runs.get(db, run_id), [metrics_event(1, loss=math.nan)], 1)

    with read_session(engine) as db:
        metric = db.exec(select(Metric)).one()
        assert (metric.value, metric.non_finite) == (None, "nan")
        assert math.isnan(runs.get(db, run_id).metrics["loss"])


def test_started_event_moves_run_to_running(db: Session) -> None:
    run = make_run(db)
    queue.claim(db, "w", slots=1)
    attempts.apply_events(db, run, [Started(total_steps=7, resolved={"compute": "bfloat16"})], 1)

    assert (run.status, run.total_steps, run.resolved) == (
        RunStatus.RUNNING,
        7,
        {"compute": "bfloat16"},
    )


def test_sampled_answers_are_stored(db: Session) -> None:
    run = make_running(db)
    said = Sampled(stage="before", step=0, position=0, prompt="Hi", reference="Hello", answer="?")
    attempts.apply_events(db, run, [said], 1)
    db.flush()

    sample = db.exec(select(Sample)).one()
    assert (sample.stage, sample.prompt, sample.answer) == ("before", "Hi", "?")


def test_finished_run_succeeds(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(db, run, [Finished(metrics={"eval_loss": 1.5})], 1)
    attempts.close_exited(db, run, ProcessExit(exit_code=0))

    assert (run.status, run.metrics) == (RunStatus.SUCCEEDED, {"eval_loss": 1.5})


def test_failure_event_sets_run_error(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(
        db, run, [Failed(code="disk_full", message="The disk is full.", hint="Free it.")], 1
    )
    attempts.close_exited(db, run, ProcessExit(exit_code=1))

    assert (run.status, run.error_code, run.error_message, run.error_hint) == (
        RunStatus.FAILED,
        "disk_full",
        "The disk is full.",
        "Free it.",
    )


def test_enospc_exit_code_is_reported_as_full_disk(db: Session) -> None:
    run = make_running(db)
    attempts.close_exited(db, run, ProcessExit(exit_code=errno.ENOSPC))

    assert (run.error_code, run.error_message, run.error_hint) == (
        "disk_full",
        "The disk is full.",
        "Delete old runs or models, then try again.",
    )


def test_zero_exit_code_alone_is_failure(db: Session) -> None:
    run = make_running(db)
    attempts.close_exited(db, run, ProcessExit(exit_code=0))

    assert (run.status, run.error_message) == (
        RunStatus.FAILED,
        "The training process exited with code 0 and printed nothing.",
    )


@pytest.mark.parametrize("events", [[], [Stopped(step=3)]])
def test_stopping_run_ends_cancelled(db: Session, events: list[Stopped]) -> None:
    run = make_running(db)
    run_commands.cancel(db, run.id or 0)
    attempts.apply_events(db, run, events, 1)
    attempts.close_exited(db, run, ProcessExit(exit_code=-15))

    assert run.status is RunStatus.CANCELLED


def test_run_finishing_while_stopping_succeeds(db: Session) -> None:
    run = make_running(db)
    run_commands.cancel(db, run.id or 0)
    attempts.apply_events(db, run, [Finished(metrics={})], 1)
    attempts.close_exited(db, run, ProcessExit(exit_code=0))

    assert run.status is RunStatus.SUCCEEDED


def test_finished_run_ignores_later_events(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(db, run, [Finished(metrics={}), Failed(code="x", message="Too late.")], 1)
    attempts.close_exited(db, run, ProcessExit(exit_code=1))

    assert (run.status, run.error_message) == (RunStatus.SUCCEEDED, "")


@pytest.mark.parametrize("asked", [RunCommand.PAUSE, RunCommand.DRAIN])
@pytest.mark.parametrize("word", [[Paused(step=4)], [Stopped(step=0)], []])
def test_run_stopped_by_pause_or_drain_can_resume(
    db: Session, asked: RunCommand, word: list[Paused | Stopped]
) -> None:
    make_run(db)
    run = claimed(db)
    run_commands.pause(db, run.id or 0) if asked is RunCommand.PAUSE else run_commands.drain(
        db, run.id or 0
    )
    attempts.apply_events(db, run, word, 2)
    attempts.close_exited(db, run, ProcessExit(exit_code=0))

    expected = {RunCommand.PAUSE: RunStatus.PAUSED, RunCommand.DRAIN: RunStatus.QUEUED}[asked]
    assert (run.status, run.asked, run.handle, run.resumes) == (expected, None, "", True)


def test_run_stopped_and_kept_succeeds(db: Session) -> None:
    run = make_running(db)
    run_commands.stop_and_keep(db, run.id or 0)
    attempts.apply_events(db, run, [Stopped(step=4, kept=True)], 1)
    attempts.close_exited(db, run, ProcessExit(exit_code=0))

    assert run.status is RunStatus.SUCCEEDED


def test_resumed_run_stores_each_step_once(db: Session) -> None:
    make_run(db)
    run = claimed(db)
    told = [metrics_event(step, loss=3 - step / 10) for step in (1, 2, 3)]
    attempts.apply_events(db, run, [*told, Checkpointed(step=2, bytes=10, seconds=0.1)], 2)
    attempts.close_exited(db, run, KILLED)
    run = claimed(db)
    again = [metrics_event(3, loss=2.5), metrics_event(4, loss=2.4)]
    attempts.apply_events(db, run, [Resumed(step=2, attempt=2), *again], 3)
    db.flush()

    rows = db.exec(select(Metric.step, Metric.value).order_by(col(Metric.step))).all()
    assert rows == [(1, 2.9), (2, 2.8), (3, 2.5), (4, 2.4)]
    assert [
        (one.number, one.outcome, one.from_step) for one in attempts.list_attempts(db, run.id or 0)
    ] == [
        (1, "lost", 0),
        (2, "", 2),
    ]


def test_resumed_run_shows_checkpoint_metrics(db: Session) -> None:
    make_run(db)
    run = claimed(db)
    told = [metrics_event(2, loss=2.8, eval_loss=2.9), metrics_event(3, loss=float("nan"))]
    attempts.apply_events(db, run, [metrics_event(0, eval_loss=3.5), *told], 2)
    attempts.close_exited(db, run, KILLED)
    run = claimed(db)
    attempts.apply_events(db, run, [Resumed(step=2, attempt=2)], 3)

    assert (run.step, run.metrics) == (2, {"loss": 2.8, "eval_loss": 2.9})


def test_killed_process_is_retried_from_checkpoint(db: Session) -> None:
    make_run(db)
    run = claimed(db)
    attempts.close_exited(db, run, KILLED)

    assert (run.status, run.resumes, run.attempt, run.worker) == (RunStatus.QUEUED, True, 1, "")


def test_repeatedly_killed_run_fails(db: Session) -> None:
    make_run(db)
    for _attempt in range(3):
        attempts.close_exited(db, claimed(db), KILLED)
        db.flush()

    run = runs.get(db, 1)
    assert (run.status, run.attempt, run.error_code, run.error_message) == (
        RunStatus.FAILED,
        3,
        "killed",
        (
            "The training process was killed from outside the studio (SIGKILL). It was attempted 3 "
            "times."
        ),
    )


@pytest.mark.parametrize(
    ("end", "code", "status"),
    [
        (ProcessExit(rebooted=True), "", RunStatus.QUEUED),
        (ProcessExit(), "", RunStatus.QUEUED),
        (ProcessExit(exit_code=-9, hung=True), "", RunStatus.QUEUED),
        (ProcessExit(exit_code=-9, out_of_memory=True), "out_of_memory", RunStatus.FAILED),
        (ProcessExit(exit_code=-11), "crashed", RunStatus.FAILED),
        (ProcessExit(exit_code=3), "crashed", RunStatus.FAILED),
    ],
)
def test_only_transient_exits_are_retried(
    db: Session, end: ProcessExit, code: str, status: RunStatus
) -> None:
    make_run(db)
    run = claimed(db)
    attempts.close_exited(db, run, end)

    assert (run.status, run.error_code) == (status, code)


def test_crash_message_gives_step_and_signal(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(db, run, [metrics_event(4, loss=2.0)], 1)
    attempts.close_exited(db, run, ProcessExit(exit_code=-11))

    assert run.error_message == (
        "The training process crashed in compiled code at step 4 (SIGSEGV)."
    )


def test_worker_with_lost_lease_cannot_write(db: Session) -> None:
    """It was asleep until its lease was over; another has the run by now."""
    make_run(db)
    run = claimed(db, "frozen")
    run.lease_until = datetime.now(UTC) - timedelta(seconds=1)
    db.flush()
    taken = attempts.list_abandoned(db, "awake", alone=False)
    owner = attempts.take_over(db, taken[0], "awake")

    assert attempts.require_owned(db, run.id or 0, owner) is run
    with pytest.raises(LeaseLostError):
        attempts.require_owned(db, run.id or 0, AttemptOwner("frozen", 1))


def test_extended_lease_protects_run(db: Session) -> None:
    make_run(db)
    claimed(db, "there")
    attempts.extend_leases(db, "there")
    db.flush()

    assert attempts.list_abandoned(db, "other", alone=False) == []


def test_lone_worker_takes_over_without_waiting_for_lease(db: Session) -> None:
    make_run(db)
    run = claimed(db, "gone")
    db.flush()

    assert attempts.list_abandoned(db, "next", alone=True) == [run]


def test_requeue_returns_run_to_queue(db: Session) -> None:
    run: Run = make_run(db)
    queue.claim(db, "w", slots=1)
    attempts.requeue(db, run)

    assert (run.status, run.worker) == (RunStatus.QUEUED, "")


def test_unrecorded_exit_is_reported_as_lost_worker(db: Session) -> None:
    make_run(db)
    for _attempt in range(3):
        attempts.close_exited(db, claimed(db), ProcessExit())
        db.flush()

    run = runs.get(db, 1)
    assert (run.error_code, run.error_message) == (
        "lost_worker",
        (
            "The training process ended after its worker did, so there is no record of how it "
            "ended. It was attempted 3 times."
        ),
    )


def test_missing_package_is_reported_from_last_output_line(db: Session) -> None:
    run = make_running(db)
    said = "ModuleNotFoundError: No module named 'psutil'"
    attempts.close_exited(db, run, ProcessExit(exit_code=1, last_line=said))

    assert (run.error_code, run.error_message) == (
        "dependency_missing",
        (
            "A Python package that the training process needs could not be loaded: No module named "
            "'psutil'."
        ),
    )
