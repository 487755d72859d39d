"""What may be asked of a run, and when."""

from collections.abc import Callable

import pytest
from sqlmodel import Session

from studio.db.states import RunCommand, RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError
from studio.protocols.events import AlarmRaised, Checkpointed, Failed, Paused
from studio.services.metrics import metrics
from studio.services.queue import queue
from studio.services.runs import attempts, run_commands, runs
from tests.support.factories import make_finished_run, make_run, make_running, metrics_event


def make_paused(db: Session) -> Run:
    run = make_running(db)
    run_commands.pause(db, run.id or 0)
    attempts.apply_events(db, run, [Paused(step=3)], 1)
    return run


def make_failed(db: Session) -> Run:
    run = make_running(db)
    attempts.apply_events(db, run, [Checkpointed(step=3, bytes=1, seconds=0.1)], 1)
    attempts.fail(db, run, Failed(code="non_finite", message="No number."))
    return run


def make_stopping(db: Session) -> Run:
    return run_commands.cancel(db, make_running(db).id or 0)


@pytest.mark.parametrize("make", [make_run, make_paused])
def test_run_without_process_is_cancelled_immediately(
    db: Session, make: Callable[[Session], Run]
) -> None:
    run = make(db)

    assert run_commands.cancel(db, run.id or 0).status is RunStatus.CANCELLED
    assert run.finished_at is not None


@pytest.mark.parametrize(
    ("ask", "word"),
    [
        (run_commands.cancel, RunCommand.CANCEL),
        (run_commands.stop_and_keep, RunCommand.KEEP),
        (run_commands.pause, RunCommand.PAUSE),
    ],
)
def test_command_moves_running_run_to_stopping(
    db: Session, ask: Callable[[Session, int], Run], word: RunCommand
) -> None:
    run = ask(db, make_running(db).id or 0)

    assert (run.status, run.asked) == (RunStatus.STOPPING, word)


@pytest.mark.parametrize(
    ("make", "word"), [(make_finished_run, "succeeded"), (make_stopping, "stopping")]
)
def test_ended_run_cannot_be_cancelled(
    db: Session, make: Callable[[Session], Run], word: str
) -> None:
    run = make(db)
    with pytest.raises(ConflictError) as refused:
        run_commands.cancel(db, run.id or 0)

    assert refused.value.message == f"Run {run.id} is already {word}."


def test_pausing_run_can_still_be_cancelled(db: Session) -> None:
    run = make_running(db)
    run_commands.pause(db, run.id or 0)

    assert run_commands.cancel(db, run.id or 0).asked is RunCommand.CANCEL


def test_paused_run_returns_to_queue(db: Session) -> None:
    run = make_paused(db)

    assert (run_commands.resume(db, run.id or 0).status, run.resumes) == (RunStatus.QUEUED, True)


def test_failed_run_is_retried_from_checkpoint(db: Session) -> None:
    run = run_commands.retry(db, make_failed(db).id or 0)

    assert (run.status, run.resumes, run.error_code, run.finished_at) == (
        RunStatus.QUEUED,
        True,
        "",
        None,
    )


def test_run_without_checkpoint_cannot_be_retried(db: Session) -> None:
    run = make_running(db)
    attempts.fail(db, run, Failed(code="x", message="No."))
    with pytest.raises(ConflictError) as refused:
        run_commands.retry(db, run.id or 0)

    assert (refused.value.message, refused.value.hint) == (
        "Run 1 has no checkpoint.",
        "Restart it instead.",
    )


def test_restarted_run_clears_earlier_metrics_and_alarms(db: Session) -> None:
    run = make_running(db)
    alarm = AlarmRaised(code="zero_loss", message="Nothing is learnt.", hint="", step=2)
    attempts.apply_events(
        db, run, [metrics_event(1, loss=3.0), metrics_event(2, loss=2.0), alarm], 1
    )
    attempts.fail(db, run, Failed(code="x", message="No."))
    number = run_commands.restart(db, run.id or 0).id or 0

    assert (run.status, run.resumes, run.checkpoint_step) == (RunStatus.QUEUED, False, None)
    assert (run.step, run.tokens, run.metrics, run.error_code) == (0, 0, {}, "")
    assert metrics.list_keys(db, [number]) == []
    assert list(runs.list_alarms(db, number)) == []

    taken = queue.claim(db, "w", 1)
    assert taken is run
    attempts.apply_events(db, run, [metrics_event(1, loss=2.5), alarm], 2)
    assert metrics.load_curves(db, [number], ["loss"]).series[number, "loss"].mean == [2.5]
    assert len(runs.list_alarms(db, number)) == 1
    told = [one.kind for one in runs.list_events(db, number)]
    assert (told.count("alarm"), told.count("restarted"), run.attempt) == (2, 1, 1)


@pytest.mark.parametrize("verb", [run_commands.resume, run_commands.retry, run_commands.restart])
def test_succeeded_run_rejects_commands(db: Session, verb: Callable[[Session, int], Run]) -> None:
    run = make_finished_run(db)
    with pytest.raises(ConflictError):
        verb(db, run.id or 0)

    assert run.status is RunStatus.SUCCEEDED
