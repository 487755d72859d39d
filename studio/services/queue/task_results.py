"""What the end of a chore means to the noun that asked for it, in the same transaction."""

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

Ended = Callable[[Session, Task, dict[str, Any]], None]
"""Takes a chore that has succeeded, failed or been cancelled, and what it came to: nothing unless
it has succeeded. What it refuses to take, the chore fails of."""


def _built(db: Session, chore: Task, result: dict[str, Any]) -> None:
    dataset_builds.ended(db, chore, result)
    fine_tuning_jobs.files_read(db, Path(chore.params["home"]).parent, chore)


ENDED: dict[str, Ended] = {
    dataset_builds.KIND: _built,
    downloads.KIND: downloads.ended,
    data_quality.KIND: data_quality.ended,
    "fetch": import_sources.ended,
}


@contextmanager
def told(db: Session, chore: Task) -> Iterator[None]:
    """Tell whom it concerns if the chore ends meanwhile."""
    had_ended = chore.status.is_final
    yield
    tell = ENDED.get(chore.kind)
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
    """Call a chore off, and tell whom it concerns."""
    chore = tasks.get(db, chore_id)
    with told(db, chore):
        tasks.cancel(chore)
    return chore
