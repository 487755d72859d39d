"""Actions on many runs at once, and how to undo them.

The archive hides runs. A run in the trash keeps its metrics and files until it is removed
permanently: by hand, or after `RETENTION`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError
from studio.services.accounts import owners
from studio.services.models import endpoint_uses, reward_models
from studio.services.runs import runs, tags_notes

RETENTION = timedelta(days=30)


def archive(db: Session, run_ids: Sequence[int]) -> list[int]:
    """Archive runs. Return the ids of those that were not archived."""
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
    """Move runs to the trash. Return the ids of those that were not in it.

    Raises:
        ConflictError: one of them is queued or live, or is needed by such a run; none was moved.

    """
    changed = [run for run in tags_notes.load_runs(db, run_ids) if run.deleted_at is None]
    for run in changed:
        if run.status is RunStatus.QUEUED or run.status.is_live:
            raise ConflictError(f"Run {run.id} is {run.status}.", hint="Cancel it first.")
        reward_models.require_unused(db, run)
        endpoint_uses.require_run_unused(db, run.id or 0)
        run.deleted_at = datetime.now(UTC)
    return _ids(changed)


def restore(db: Session, run_ids: Sequence[int]) -> list[int]:
    """Restore runs from the trash. Return the ids of those that were in it."""
    changed = [run for run in tags_notes.load_runs(db, run_ids) if run.deleted_at is not None]
    for run in changed:
        run.deleted_at = None
    return _ids(changed)


def remove(db: Session, run_ids: Sequence[int], folder: Path) -> list[int]:
    """Permanently delete the given runs that are in the trash, with their metrics and files."""
    removed = _ids([run for run in tags_notes.load_runs(db, run_ids) if run.deleted_at is not None])
    for run_id in removed:
        runs.delete(db, run_id, folder)
    return removed


def empty(db: Session, folder: Path, *, before: datetime | None = None) -> list[int]:
    """Permanently delete what was moved to the trash before a time: by default `RETENTION` ago."""
    until = before or datetime.now(UTC) - RETENTION
    query = select(Run.id).where(col(Run.deleted_at) < until)
    return remove(db, [run_id for run_id in db.exec(query) if run_id is not None], folder)


def _ids(changed: Sequence[Run]) -> list[int]:
    return [run.id or 0 for run in changed]


BulkAction = Literal["archive", "unarchive", "trash", "restore", "remove", "tag", "untag"]

MAX_RUNS = 10_000

UNDO: dict[BulkAction, BulkAction] = {
    "archive": "unarchive",
    "unarchive": "archive",
    "trash": "restore",
    "restore": "trash",
    "tag": "untag",
    "untag": "tag",
}
"""The action that undoes each action. Permanent removal cannot be undone."""


def apply_action(
    db: Session, action: BulkAction, run_ids: Sequence[int], tag: str, folder: Path
) -> list[int]:
    """Apply an action to all of the runs or none. Return the ids of those it changed.

    Raises:
        ForbiddenError: a run belongs to another member.
        ConflictError: a run to move to the trash is queued or live.
        InvalidError: the tag is not valid.

    """
    owners.require(db, "runs", run_ids)
    match action:
        case "tag":
            return tags_notes.tag(db, run_ids, tag)
        case "untag":
            return tags_notes.untag(db, run_ids, tag)
        case "remove":
            return remove(db, run_ids, folder)
    actions = {
        "archive": archive,
        "unarchive": unarchive,
        "trash": move_to_trash,
        "restore": restore,
    }
    return actions[action](db, run_ids)
