"""Browsers that were let in: each holds a random cookie, and is shown out when it is time."""

import secrets
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement
from sqlmodel import Session, col, delete, select

from studio.db.accounts import LoginSession
from studio.db.column_types import now
from studio.errors import NotFoundError
from studio.services.accounts.one_time_links import hash_secret

IDLE_TIMEOUT = timedelta(hours=12)
"""How long a browser may say nothing."""
ABSOLUTE_TIMEOUT = timedelta(days=7)
"""How long it is let in at most."""
TOUCH_INTERVAL = timedelta(minutes=1)
"""How often it is noted that somebody was seen: more often would only wear the disk."""


def begin(db: Session, account_id: int | None, address: str = "", agent: str = "") -> str:
    """Let a browser in. Return what its cookie has to say."""
    db.exec(delete(LoginSession).where(_expired_condition()))
    secret = secrets.token_urlsafe(32)
    db.add(
        LoginSession(
            sha256=hash_secret(secret), account_id=account_id, address=address, agent=agent[:200]
        )
    )
    return secret


def find(db: Session, secret: str) -> LoginSession | None:
    found = db.exec(select(LoginSession).where(LoginSession.sha256 == hash_secret(secret))).first()
    return found if found is not None and not _is_expired(found) else None


def touch(db: Session, sign_in_id: int) -> None:
    found = db.get(LoginSession, sign_in_id)
    if found is not None:
        found.seen_at = now()


def list_sessions(db: Session, account_id: int | None) -> Sequence[LoginSession]:
    """Return whoever is in for an account, the last seen first."""
    newest = col(LoginSession.seen_at).desc()
    mine = col(LoginSession.account_id) == account_id
    return db.exec(select(LoginSession).where(mine, ~_expired_condition()).order_by(newest)).all()


def end(db: Session, sign_in_id: int, account_id: int | None) -> None:
    """Show one of an account's browsers out.

    Raises:
        NotFoundError: it has none by this number.

    """
    found = db.get(LoginSession, sign_in_id)
    if found is None or found.account_id != account_id:
        raise NotFoundError("There is no such browser.", hint="It may be signed out already.")
    db.delete(found)


def end_others(db: Session, account_id: int | None, but: int | None = None) -> None:
    """Show all of an account's browsers out, but for one."""
    mine = col(LoginSession.account_id) == account_id
    db.exec(delete(LoginSession).where(mine, col(LoginSession.id) != (but or 0)))


def _is_expired(found: LoginSession) -> bool:
    return found.seen_at < now() - IDLE_TIMEOUT or found.began_at < now() - ABSOLUTE_TIMEOUT


def _expired_condition() -> ColumnElement[bool]:
    return (col(LoginSession.seen_at) < now() - IDLE_TIMEOUT) | (
        col(LoginSession.began_at) < now() - ABSOLUTE_TIMEOUT
    )
