"""What the end of a chore means to the noun that asked for it, in the same transaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.owners import Actor, acting
from studio.db.work import Chore
from studio.errors import StudioError
from studio.events import Failed
from studio.services import builds, chores, downloads, findings, openai_jobs, sources, work

Ended = Callable[[Session, Chore, dict[str, Any]], None]
"""Takes a chore that has succeeded, failed or been cancelled, and what it came to: nothing unless
it has succeeded. What it refuses to take, the chore fails of."""


def _built(db: Session, chore: Chore, result: dict[str, Any]) -> None:
    builds.ended(db, chore, result)
    openai_jobs.files_read(db, Path(chore.params["home"]).parent, chore)


ENDED: dict[str, Ended] = {
    builds.KIND: _built,
    downloads.KIND: downloads.ended,
    findings.KIND: findings.ended,
    "fetch": sources.ended,
}


@contextmanager
def told(db: Session, chore: Chore) -> Iterator[None]:
    """Tell whom it concerns if the chore ends meanwhile."""
    had_ended = chore.status.is_final
    yield
    tell = ENDED.get(chore.kind)
    if tell is None or had_ended or not chore.status.is_final:
        return
    try:
        with acting(Actor(account_id=chore.owner_id)), db.begin_nested():
            tell(db, chore, chore.result)
    except StudioError as error:
        chore.result = {}
        work.fail(chore, Failed(code=error.code, message=error.message, hint=error.hint))
        tell(db, chore, {})


def cancel(db: Session, chore_id: int) -> Chore:
    """Call a chore off, and tell whom it concerns."""
    chore = chores.get(db, chore_id)
    with told(db, chore):
        chores.cancel(chore)
    return chore
