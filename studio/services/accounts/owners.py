"""Whose things are: members change their own and everyone's; what is another's they only read."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Table
from sqlmodel import Session, SQLModel, col, select, update

from studio.db.owners import current_actor
from studio.db.summaries import SavedComparison, SavedView
from studio.db.sweeps import Sweep
from studio.db.tables import Dataset, Experiment, Model, Run, Study
from studio.db.tasks import Task
from studio.errors import ForbiddenError

TABLES_BY_PATH: dict[str, type[SQLModel]] = {
    "chores": Task,
    "comparisons": SavedComparison,
    "datasets": Dataset,
    "experiments": Experiment,
    "models": Model,
    "queue": Run,
    "reports/precision": Study,
    "runs": Run,
    "studies": Study,
    "sweeps": Sweep,
    "views": SavedView,
}
"""What each beginning of an address has rows of: the number of one follows."""


def require(db: Session, noun: str, ids: Sequence[int]) -> None:
    """Let only those change things who may.

    Raises:
        ForbiddenError: one of them is another's.

    """
    acting = current_actor()
    if not acting.is_limited or not ids:
        return
    table: Table = TABLES_BY_PATH[noun].__table__  # type: ignore[attr-defined] # SQLModel does not tell
    if not all(may_change(owner) for owner in _load_owners(db, table, ids)):
        raise ForbiddenError(
            "This belongs to somebody else.",
            hint="Its owner or an administrator can change it. Make a copy of your own instead.",
        )


def may_change(owner_id: int | None) -> bool:
    """Whether who acts may change what somebody owns."""
    acting = current_actor()
    return not acting.is_limited or owner_id in (None, acting.account_id)


def release_all(db: Session, account_id: int) -> None:
    """Make what somebody made everyone's."""
    for kind in set(TABLES_BY_PATH.values()):
        owner = kind.__table__.c.owner_id  # type: ignore[attr-defined] # SQLModel does not tell
        db.exec(update(kind).where(owner == account_id).values(owner_id=None))


def _load_owners(db: Session, table: Table, ids: Sequence[int]) -> Iterable[int | None]:
    # In parts: SQLite takes no more than some thousand values at once.
    for start in range(0, len(ids), 500):
        part = col(table.c.id).in_(ids[start : start + 500])
        yield from db.exec(select(table.c.owner_id).where(part).distinct()).all()
