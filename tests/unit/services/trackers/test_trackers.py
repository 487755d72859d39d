"""When which run is sent where: defaults, retries, and what a task has come to."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Run
from studio.db.trackers import TrackedRun
from studio.errors import ConflictError, NotFoundError
from studio.protocols.events import Failed
from studio.services.queue import task_results
from studio.services.runs import attempts, runs
from studio.services.tasks import tasks
from studio.services.trackers import tracker_status, trackers
from studio.settings import Settings
from studio.trackers.contract import RETRY_SECONDS, TrackerOptions, TrackingJob
from tests.support.factories import make_finished_run, make_running, metrics_event

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=3650)
"""After everything that waits."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    changes = {"trackers": ("csv", "mlflow"), "public_url": "https://studio.example.org/"}
    return settings.model_copy(update=changes)


def training(db: Session) -> Run:
    """Return a run that has logged a step."""
    run = make_running(db)
    attempts.apply_events(db, run, [metrics_event(1, loss=3.0)], 100)
    return run


def outcome(offset: int, *, is_closed: bool = False, failures: int = 0) -> dict[str, object]:
    error = "MLflow did not answer." if failures else ""
    own = {"offset": offset, "is_closed": is_closed, "failures": failures}
    wait = timedelta(seconds=RETRY_SECONDS[0])
    retry_at = (datetime.now(UTC) + wait).isoformat() if failures else None
    return {"trackers": {"csv": {**own, "error": error, "hint": "", "retry_at": retry_at}}}


def end_task(db: Session, run: Run, result: dict[str, object]) -> TrackedRun:
    """Let the task of a run end with a result."""
    task = trackers.current_task(db, run)
    assert task is not None
    with task_results.notify_on_end(db, task):
        task.result = result
        tasks.close_work(task, TaskStatus.SUCCEEDED)
    return trackers.get(db, run.id or 0, "csv")


def test_settings_name_the_trackers_of_new_runs() -> None:
    assert Settings.model_validate({"trackers": "csv, mlflow"}).trackers == ("csv", "mlflow")
    assert Settings.model_validate({"trackers": "csv:mlflow"}).trackers == ("csv", "mlflow")
    assert Settings(trackers=("csv", "mlflow")).environment["STUDIO_TRACKERS"] == "csv:mlflow"


def test_run_is_sent_where_all_new_runs_are(db: Session, settings: Settings) -> None:
    run = training(db)
    trackers.add_defaults(db, run, settings)
    trackers.add_defaults(db, run, settings)

    assert [row.key for row in trackers.list_for_run(db, run.id or 0)] == ["csv", "mlflow"]


def test_one_run_may_go_to_several_projects(db: Session) -> None:
    run_id = training(db).id or 0
    for project in ("a", "b", "a"):
        trackers.add(db, run_id, "wandb", TrackerOptions(project=project))

    assert [row.key for row in trackers.list_for_run(db, run_id)] == ["wandb", "wandb-2"]
    for number in range(trackers.MAX_TRACKERS - 2):
        trackers.add(db, run_id, "wandb", TrackerOptions(project=f"{number}"))
    with pytest.raises(ConflictError):
        trackers.add(db, run_id, "wandb", TrackerOptions(project="one more"))


def test_task_knows_what_the_run_is(db: Session, settings: Settings) -> None:
    run = training(db)
    trackers.add_defaults(db, run, settings)
    trackers.enqueue_due(db, settings, LATER)
    task = trackers.current_task(db, run)

    assert task is not None
    job = TrackingJob.model_validate(task.params)
    assert list(job.trackers) == ["csv", "mlflow"]
    assert (job.facts.name, job.facts.experiment) == (run.name, run.name)
    assert job.facts.url == f"https://studio.example.org/runs/{run.id}"
    assert job.facts.recipe["base_model"] == "starter"
    assert (job.facts.end, job.folder) == (None, settings.runs / str(run.id))


def test_run_is_sent_once_it_has_logged_a_step(db: Session, settings: Settings) -> None:
    run = make_running(db)
    trackers.add(db, run.id or 0, "csv")
    assert not trackers.has_due(db, LATER)

    attempts.apply_events(db, run, [metrics_event(1, loss=3.0)], 100)
    assert trackers.has_due(db, LATER)
    trackers.enqueue_due(db, settings, LATER)
    assert not trackers.has_due(db, LATER), "Its task is queued."


def test_task_that_has_sent_everything_is_followed_by_another_if_there_is_news(
    db: Session, settings: Settings
) -> None:
    run = training(db)
    trackers.add(db, run.id or 0, "csv")
    trackers.enqueue_due(db, settings, LATER)
    row = end_task(db, run, outcome(100))
    assert not trackers.has_due(db, LATER)

    attempts.apply_events(db, run, [metrics_event(2, loss=3.0)], 200)
    assert trackers.has_due(db, LATER)
    assert not trackers.has_due(db, row.due_at - timedelta(seconds=1)), "Not for each step."


def test_end_of_run_is_sent_at_once(db: Session, settings: Settings) -> None:
    run = training(db)
    trackers.add(db, run.id or 0, "csv")
    trackers.enqueue_due(db, settings, LATER)
    end_task(db, run, outcome(100))
    attempts.fail(db, run, Failed(code="killed", message="It was killed."))

    trackers.enqueue_due(db, settings, NOW)
    task = trackers.current_task(db, run)
    assert task is not None
    end = TrackingJob.model_validate(task.params).facts.end
    assert end is not None
    assert (end.status, end.error) == ("failed", "It was killed.")
    end_task(db, run, outcome(100, is_closed=True))
    assert not trackers.has_due(db, LATER)


def test_old_run_can_be_sent_later(db: Session, settings: Settings) -> None:
    run = make_finished_run(db)
    trackers.add(db, run.id or 0, "csv")

    trackers.enqueue_due(db, settings, datetime.now(UTC))
    assert trackers.current_task(db, run) is not None


def test_failure_is_tried_again_later_and_given_up_in_the_end(
    db: Session, settings: Settings
) -> None:
    run = make_finished_run(db)
    trackers.add(db, run.id or 0, "csv")
    for failures in range(1, len(RETRY_SECONDS) + 2):
        trackers.enqueue_due(db, settings, LATER)
        row = end_task(db, run, outcome(0, failures=failures))
        assert row.due_at > datetime.now(UTC) + timedelta(seconds=RETRY_SECONDS[0] - 5)

    assert not trackers.has_due(db, LATER)
    (status,) = tracker_status.list_for_run(db, settings, run)
    assert (status.progress, status.error) == ("given_up", "MLflow did not answer.")


def test_user_can_try_again(db: Session, settings: Settings) -> None:
    run = make_finished_run(db)
    trackers.add(db, run.id or 0, "csv")
    trackers.enqueue_due(db, settings, LATER)
    end_task(db, run, outcome(0, failures=len(RETRY_SECONDS) + 1))
    trackers.retry(db, settings, run.id or 0, "csv")

    assert trackers.has_due(db, datetime.now(UTC))


def test_task_that_was_lost_counts_as_failure(db: Session, settings: Settings) -> None:
    run = make_finished_run(db)
    trackers.add(db, run.id or 0, "csv")
    trackers.enqueue_due(db, settings, LATER)
    task = trackers.current_task(db, run)
    assert task is not None
    with task_results.notify_on_end(db, task):
        tasks.fail_work(task, Failed(code="killed", message="It was killed.", hint="See the log."))

    row = trackers.get(db, run.id or 0, "csv")
    assert (row.failures, row.error, row.hint) == (1, "It was killed.", "See the log.")


def test_cancelled_task_is_not_repeated(db: Session, settings: Settings) -> None:
    run = make_finished_run(db)
    trackers.add(db, run.id or 0, "csv")
    trackers.enqueue_due(db, settings, LATER)
    task = trackers.current_task(db, run)
    assert task is not None
    task_results.cancel(db, task.id or 0)

    assert not trackers.has_due(db, LATER)
    assert trackers.get(db, run.id or 0, "csv").error == "Sending was cancelled."


def test_removed_tracker_is_no_longer_sent_to(db: Session, settings: Settings) -> None:
    run = make_finished_run(db)
    trackers.add(db, run.id or 0, "csv")
    trackers.remove(db, settings, run.id or 0, "csv")

    assert not trackers.has_due(db, LATER)
    with pytest.raises(NotFoundError):
        trackers.get(db, run.id or 0, "csv")


def test_deleted_run_takes_its_trackers_along(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
        trackers.add(db, run.id or 0, "csv")
        run_id = run.id or 0
    with unit_of_work(engine) as db:
        runs.delete(db, run_id, settings.runs)

    with unit_of_work(engine) as db:
        assert trackers.list_for_run(db, run_id) == []
    assert run.status is RunStatus.SUCCEEDED
