"""What happens when a task ends: its noun updates its rows in the same transaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.owners import Actor, acting_as
from studio.db.tasks import Task
from studio.errors import StudioError
from studio.protocols.events import Failed
from studio.services.datasets import data_quality, dataset_builds, import_sources
from studio.services.evaluations import answer_sets, judgements, score_sets
from studio.services.models import downloads
from studio.services.openai import fine_tuning_jobs
from studio.services.tasks import tasks
from studio.services.trackers import trackers

EndHandler = Callable[[Session, Task, dict[str, Any]], None]
"""Called with a task that succeeded, failed or was cancelled, and its result, which is empty
unless it succeeded. If it raises a StudioError, the task fails with that error."""


def _on_build_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    dataset_builds.on_task_end(db, task, result)
    fine_tuning_jobs.on_files_read(db, Path(task.params["home"]).parent, task)


END_HANDLERS: dict[str, EndHandler] = {
    dataset_builds.KIND: _on_build_end,
    downloads.KIND: downloads.on_task_end,
    data_quality.KIND: data_quality.on_task_end,
    "fetch": import_sources.on_task_end,
    answer_sets.KIND: answer_sets.on_task_end,
    score_sets.KIND: score_sets.on_task_end,
    trackers.KIND: trackers.on_task_end,
    **dict.fromkeys(judgements.KINDS.values(), judgements.on_task_end),
}


@contextmanager
def notify_on_end(db: Session, task: Task) -> Iterator[None]:
    """Call the task's end handler if the task ends inside the block."""
    had_ended = task.status.is_final
    yield
    handler = END_HANDLERS.get(task.kind)
    if handler is None or had_ended or not task.status.is_final:
        return
    try:
        with acting_as(Actor(account_id=task.owner_id)), db.begin_nested():
            handler(db, task, task.result)
    except StudioError as error:
        task.result = {}
        tasks.fail_work(task, Failed(code=error.code, message=error.message, hint=error.hint))
        handler(db, task, {})


def cancel(db: Session, task_id: int) -> Task:
    """Cancel a task and call its end handler."""
    task = tasks.get(db, task_id)
    with notify_on_end(db, task):
        tasks.cancel(task)
    return task
