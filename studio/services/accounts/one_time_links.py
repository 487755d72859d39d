"""One-time links: to sign in to your own studio, and to set a password."""

import hashlib
import secrets
from datetime import timedelta

from sqlmodel import Session, col, delete

from studio.db.accounts import Account, LinkPurpose, OneTimeLink
from studio.db.column_types import now
from studio.errors import UnauthorizedError

LIFETIME = timedelta(hours=24)


def issue(db: Session, purpose: LinkPurpose, account_id: int | None = None) -> str:
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


def verify(db: Session, secret: str) -> OneTimeLink:
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


def redeem(db: Session, secret: str) -> OneTimeLink:
    """Return a link and delete it.

    Raises:
        UnauthorizedError: See `verify`.

    """
    link = verify(db, secret)
    db.delete(link)
    db.flush()
    return link


def get_account(db: Session, link: OneTimeLink) -> Account | None:
    return db.get(Account, link.account_id) if link.account_id is not None else None


def hash_secret(secret: str) -> str:
    """Return the hash of a random secret. It cannot be guessed, so a fast hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()
