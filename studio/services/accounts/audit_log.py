"""Audit log: one row for each change that was made or refused, kept for a limited time."""

from collections.abc import Sequence
from datetime import timedelta

from sqlmodel import Session, col, delete, select

from studio.db.accounts import AuditEntry
from studio.db.column_types import now

MAX_ENTRIES = 1_000_000
"""Bounds the size of the log on disk."""


def record(db: Session, entry: AuditEntry) -> None:
    db.add(entry)


def newest(
    db: Session, limit: int, before: int | None = None, who: str = ""
) -> Sequence[AuditEntry]:
    query = select(AuditEntry).order_by(col(AuditEntry.id).desc()).limit(limit)
    if before:
        query = query.where(col(AuditEntry.id) < before)
    return db.exec(query.where(AuditEntry.who == who) if who else query).all()


def prune(db: Session, days: int) -> None:
    """Delete entries older than `days`, and those beyond `MAX_ENTRIES`."""
    db.exec(delete(AuditEntry).where(col(AuditEntry.at) < now() - timedelta(days=days)))
    last = db.exec(select(AuditEntry.id).order_by(col(AuditEntry.id).desc())).first()
    db.exec(delete(AuditEntry).where(col(AuditEntry.id) <= (last or 0) - MAX_ENTRIES))
