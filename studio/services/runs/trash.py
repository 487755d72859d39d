"""Runs out of sight: the archive, for what is only in the way, and the trash, for what shall go.

What is in the trash has its numbers and files until it is removed for good: by hand, or when it has
been there for `RETENTION`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError
from studio.services.runs import runs, tags_notes

RETENTION = timedelta(days=30)


def archive(db: Session, run_ids: Sequence[int]) -> list[int]:
    """Put runs into the archive. Return those that were not there."""
    changed = [run for run in tags_notes.load_runs(db, run_ids) if run.archived_at is None]
    for run in changed:
        run.archived_at = datetime.now(UTC)
    return _ids(changed)


def unarchive(db: Session, run_ids: Sequence[int]) -> list[int]:
    changed = [run for run in tags_notes.load_runs(db, run_ids) if run.archived_at is not None]
    for run in changed:
        run.archived_at = None
    return _ids(changed)


def move_to_trash(db: Session, run_ids: Sequence[int]) -> list[int]:
    """Put runs into the trash. Return those that were not there.

    Raises:
        ConflictError: one of them waits or trains; none was thrown away.

    """
    changed = [run for run in tags_notes.load_runs(db, run_ids) if run.deleted_at is None]
    for run in changed:
        if run.status is RunStatus.QUEUED or run.status.is_live:
            raise ConflictError(f"Run {run.id} is {run.status}.", hint="Cancel it first.")
        run.deleted_at = datetime.now(UTC)
    return _ids(changed)


def restore(db: Session, run_ids: Sequence[int]) -> list[int]:
    """Take runs out of the trash. Return those that were there."""
    changed = [run for run in tags_notes.load_runs(db, run_ids) if run.deleted_at is not None]
    for run in changed:
        run.deleted_at = None
    return _ids(changed)


def remove(db: Session, run_ids: Sequence[int], folder: Path) -> list[int]:
    """Remove runs that are in the trash for good, with their numbers and files."""
    gone = _ids([run for run in tags_notes.load_runs(db, run_ids) if run.deleted_at is not None])
    for run_id in gone:
        runs.delete(db, run_id, folder)
    return gone


def empty(db: Session, folder: Path, *, before: datetime | None = None) -> list[int]:
    """Remove for good what has been in the trash for long enough."""
    until = before or datetime.now(UTC) - RETENTION
    query = select(Run.id).where(col(Run.deleted_at) < until)
    return remove(db, [one for one in db.exec(query) if one is not None], folder)


def _ids(changed: Sequence[Run]) -> list[int]:
    return [run.id or 0 for run in changed]
