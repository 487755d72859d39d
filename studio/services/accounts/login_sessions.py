"""Login sessions: each browser has a random cookie, and is signed out after a time."""

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
"""Longest time without a request."""
ABSOLUTE_TIMEOUT = timedelta(days=7)
"""Longest session."""
TOUCH_INTERVAL = timedelta(minutes=1)
"""How often the time of the last request is stored: limits writes to disk."""


def begin(db: Session, account_id: int | None, address: str = "", agent: str = "") -> str:
    """Start a session. Return the value of its cookie."""
    db.exec(delete(LoginSession).where(_expired_condition()))
    secret = secrets.token_urlsafe(32)
    db.add(
        LoginSession(
            sha256=hash_secret(secret), account_id=account_id, address=address, agent=agent[:200]
        )
    )
    return secret


def find(db: Session, secret: str) -> LoginSession | None:
    session = db.exec(
        select(LoginSession).where(LoginSession.sha256 == hash_secret(secret))
    ).first()
    return session if session is not None and not _is_expired(session) else None


def touch(db: Session, sign_in_id: int) -> None:
    session = db.get(LoginSession, sign_in_id)
    if session is not None:
        session.seen_at = now()


def list_sessions(db: Session, account_id: int | None) -> Sequence[LoginSession]:
    """Return an account's sessions, the most recently seen first."""
    newest = col(LoginSession.seen_at).desc()
    is_owned = col(LoginSession.account_id) == account_id
    return db.exec(
        select(LoginSession).where(is_owned, ~_expired_condition()).order_by(newest)
    ).all()


def end(db: Session, sign_in_id: int, account_id: int | None) -> None:
    """End one of an account's sessions.

    Raises:
        NotFoundError: The account has no such session.

    """
    session = db.get(LoginSession, sign_in_id)
    if session is None or session.account_id != account_id:
        raise NotFoundError(
            "This session does not exist.", hint="It may have been signed out already."
        )
    db.delete(session)


def end_others(db: Session, account_id: int | None, except_session: int | None = None) -> None:
    """End all sessions of an account, except one."""
    is_owned = col(LoginSession.account_id) == account_id
    db.exec(delete(LoginSession).where(is_owned, col(LoginSession.id) != (except_session or 0)))


def _is_expired(session: LoginSession) -> bool:
    return session.seen_at < now() - IDLE_TIMEOUT or session.began_at < now() - ABSOLUTE_TIMEOUT


def _expired_condition() -> ColumnElement[bool]:
    return (col(LoginSession.seen_at) < now() - IDLE_TIMEOUT) | (
        col(LoginSession.began_at) < now() - ABSOLUTE_TIMEOUT
    )
