"""Who did what: one row for each change that was made or refused, kept for some time."""

from collections.abc import Sequence
from datetime import timedelta

from sqlmodel import Session, col, delete, select

from studio.db.accounts import Deed
from studio.db.column_types import now

MOST = 1_000_000
"""However much happens, the log does not fill the disk."""


def note(db: Session, deed: Deed) -> None:
    db.add(deed)


def newest(db: Session, limit: int, before: int | None = None, who: str = "") -> Sequence[Deed]:
    chosen = select(Deed).order_by(col(Deed.id).desc()).limit(limit)
    if before:
        chosen = chosen.where(col(Deed.id) < before)
    return db.exec(chosen.where(Deed.who == who) if who else chosen).all()


def forget(db: Session, days: int) -> None:
    """Drop what is older than some days, and what is too much."""
    db.exec(delete(Deed).where(col(Deed.at) < now() - timedelta(days=days)))
    last = db.exec(select(Deed.id).order_by(col(Deed.id).desc())).first()
    db.exec(delete(Deed).where(col(Deed.id) <= (last or 0) - MOST))
