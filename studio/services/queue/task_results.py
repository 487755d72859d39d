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
from studio.services.models import downloads
from studio.services.openai import fine_tuning_jobs
from studio.services.tasks import task_lifecycle, tasks

EndHandler = Callable[[Session, Task, dict[str, Any]], None]
"""Called with a task that succeeded, failed or was cancelled, and its result, which is empty
unless it succeeded. If it raises a StudioError, the task fails with that error."""


def _on_build_end(db: Session, chore: Task, result: dict[str, Any]) -> None:
    dataset_builds.on_task_end(db, chore, result)
    fine_tuning_jobs.on_files_read(db, Path(chore.params["home"]).parent, chore)


END_HANDLERS: dict[str, EndHandler] = {
    dataset_builds.KIND: _on_build_end,
    downloads.KIND: downloads.on_task_end,
    data_quality.KIND: data_quality.on_task_end,
    "fetch": import_sources.on_task_end,
}


@contextmanager
def notify_on_end(db: Session, chore: Task) -> Iterator[None]:
    """Call the task's end handler if the task ends inside the block."""
    had_ended = chore.status.is_final
    yield
    tell = END_HANDLERS.get(chore.kind)
    if tell is None or had_ended or not chore.status.is_final:
        return
    try:
        with acting_as(Actor(account_id=chore.owner_id)), db.begin_nested():
            tell(db, chore, chore.result)
    except StudioError as error:
        chore.result = {}
        task_lifecycle.fail(chore, Failed(code=error.code, message=error.message, hint=error.hint))
        tell(db, chore, {})


def cancel(db: Session, chore_id: int) -> Task:
    """Cancel a task and call its end handler."""
    chore = tasks.get(db, chore_id)
    with notify_on_end(db, chore):
        tasks.cancel(chore)
    return chore
