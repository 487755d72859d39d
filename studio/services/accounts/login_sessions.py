"""Login sessions: each browser has a random cookie, and is signed out after a time.

One-time links sign in to your own studio, or set a password.
"""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement
from sqlmodel import Session, col, delete, select

from studio.db.accounts import Account, LinkPurpose, LoginSession, OneTimeLink
from studio.db.column_types import now
from studio.errors import NotFoundError, UnauthorizedError

LIFETIME = timedelta(hours=24)


def issue_link(db: Session, purpose: LinkPurpose, account_id: int | None = None) -> str:
    """Create a link's secret. Earlier links of the same account stop working."""
    db.exec(delete(OneTimeLink).where(col(OneTimeLink.expires_at) < now()))
    if account_id is not None:
        db.exec(delete(OneTimeLink).where(col(OneTimeLink.account_id) == account_id))
    secret = secrets.token_urlsafe(32)
    link = OneTimeLink(
        sha256=hash_secret(secret),
        purpose=purpose,
        account_id=account_id,
        expires_at=now() + LIFETIME,
    )
    db.add(link)
    db.flush()
    return secret


def verify_link(db: Session, secret: str) -> OneTimeLink:
    """Return a link without using it up.

    Raises:
        UnauthorizedError: It was used, has expired, or never existed.

    """
    link = db.get(OneTimeLink, hash_secret(secret))
    if link is None or link.expires_at < now():
        raise UnauthorizedError(
            "This link was already used, or is older than a day.",
            hint="Each link works once. Ask for a new one.",
        )
    return link


def redeem_link(db: Session, secret: str) -> OneTimeLink:
    """Return a link and delete it.

    Raises:
        UnauthorizedError: See `verify_link`.

    """
    link = verify_link(db, secret)
    db.delete(link)
    db.flush()
    return link


def get_link_account(db: Session, link: OneTimeLink) -> Account | None:
    return db.get(Account, link.account_id) if link.account_id is not None else None


def hash_secret(secret: str) -> str:
    """Return the hash of a random secret. It cannot be guessed, so a fast hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


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
