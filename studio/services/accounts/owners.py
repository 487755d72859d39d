"""Ownership: members change their own and shared things, and only read those of others."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Table
from sqlmodel import Session, SQLModel, col, select, update

from studio.db.endpoints import Endpoint
from studio.db.feedback import Feedback
from studio.db.owners import current_actor
from studio.db.summaries import SavedComparison, SavedView
from studio.db.tables import Dataset, Experiment, Model, Run, Study, Sweep
from studio.db.tasks import Task
from studio.errors import ForbiddenError

TABLES_BY_PATH: dict[str, type[SQLModel]] = {
    "chores": Task,
    "comparisons": SavedComparison,
    "datasets": Dataset,
    "endpoints": Endpoint,
    "experiments": Experiment,
    "feedback": Feedback,
    "models": Model,
    "queue": Run,
    "reports/precision": Study,
    "runs": Run,
    "studies": Study,
    "sweeps": Sweep,
    "views": SavedView,
}
"""Table by URL path prefix; the row's id follows in the path."""


def require(db: Session, noun: str, ids: Sequence[int]) -> None:
    """Check that the current user may change things.

    Raises:
        ForbiddenError: One of them belongs to another user.

    """
    acting = current_actor()
    if not acting.is_limited or not ids:
        return
    table: Table = TABLES_BY_PATH[noun].__table__  # type: ignore[attr-defined] # set by SQLModel for tables
    if not all(may_change(owner) for owner in _load_owners(db, table, ids)):
        raise ForbiddenError(
            "This belongs to another user.",
            hint="Only its owner or an administrator can change it. Make your own copy instead.",
        )


def may_change(owner_id: int | None) -> bool:
    """Return whether the current user may change what an account owns."""
    acting = current_actor()
    return not acting.is_limited or owner_id in (None, acting.account_id)


def release_all(db: Session, account_id: int) -> None:
    """Make everything that an account owns shared."""
    for table in SQLModel.metadata.tables.values():
        if "owner_id" in table.c:
            owned = update(table).where(table.c.owner_id == account_id)
            db.exec(owned.values(owner_id=None))


def _load_owners(db: Session, table: Table, ids: Sequence[int]) -> Iterable[int | None]:
    # In batches: SQLite limits the number of values in a statement.
    for start in range(0, len(ids), 500):
        in_batch = col(table.c.id).in_(ids[start : start + 500])
        yield from db.exec(select(table.c.owner_id).where(in_batch).distinct()).all()
