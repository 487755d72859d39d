"""Links that work once: into a studio of one's own, and to choose a password."""

import hashlib
import secrets
from datetime import timedelta

from sqlmodel import Session, col, delete

from studio.db.accounts import Account, LinkPurpose, OneTimeLink
from studio.db.column_types import now
from studio.errors import UnauthorizedError

LIFETIME = timedelta(hours=24)


def issue(db: Session, purpose: LinkPurpose, account_id: int | None = None) -> str:
    """Make a link's secret. An earlier one to the same person's password works no more."""
    db.exec(delete(OneTimeLink).where(col(OneTimeLink.expires_at) < now()))
    if account_id is not None:
        db.exec(delete(OneTimeLink).where(col(OneTimeLink.account_id) == account_id))
    secret = secrets.token_urlsafe(32)
    ticket = OneTimeLink(
        sha256=hash_secret(secret),
        purpose=purpose,
        account_id=account_id,
        expires_at=now() + LIFETIME,
    )
    db.add(ticket)
    db.flush()
    return secret


def verify(db: Session, secret: str) -> OneTimeLink:
    """Return what a link is for, and let it be used later.

    Raises:
        UnknownPersonError: it was used, is too old, or never was one.

    """
    ticket = db.get(OneTimeLink, hash_secret(secret))
    if ticket is None or ticket.expires_at < now():
        raise UnauthorizedError(
            "This link was used already, or is older than a day.",
            hint="Links work once. Ask for a new one.",
        )
    return ticket


def redeem(db: Session, secret: str) -> OneTimeLink:
    """Return what a link is for; it works no more.

    Raises:
        UnknownPersonError: as `verify`.

    """
    ticket = verify(db, secret)
    db.delete(ticket)
    db.flush()
    return ticket


def get_account(db: Session, ticket: OneTimeLink) -> Account | None:
    return db.get(Account, ticket.account_id) if ticket.account_id is not None else None


def hash_secret(secret: str) -> str:
    """Return what is kept of a random secret. It is too long to be guessed, so this may be fast."""
    return hashlib.sha256(secret.encode()).hexdigest()
