"""Tokens: what programs show instead of a cookie. Only their hash is kept."""

import hmac
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine
from sqlmodel import Session, col, delete, select

from studio.db.accounts import ApiToken, Scope
from studio.db.column_types import now
from studio.db.session import unit_of_work
from studio.errors import InvalidError, NotFoundError
from studio.services.accounts.one_time_links import hash_secret
from studio.services.storage.locks import explain_os_errors

PATTERN = re.compile(r"sft_(\d{1,18})_([\w-]{43})", re.ASCII)
"""Its number, then 32 random bytes. The beginning lets scanners for secrets know one."""

LOCAL_NAME = "this machine"
"""What the token is called that programs of the same user find in the home."""

MAX_DAYS = 366


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What a token shall be."""

    name: str
    scope: Scope
    days: int | None
    """How long it lasts; None is until it is revoked."""


def create(
    db: Session, wish: TokenRequest, account_id: int | None, most: Scope = Scope.ADMIN
) -> tuple[ApiToken, str]:
    """Make a token. Return it with what a program has to show, which nobody can tell again.

    Raises:
        InvalidError: it has no name, would last too long, or may do more than its maker may.

    """
    name, days = wish.name.strip()[:100], wish.days
    if not name:
        raise InvalidError("A token needs a name.", hint="Say what it is for.", param="name")
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InvalidError(f"A token lasts 1 to {MAX_DAYS} days.", param="days")
    if not most.includes(wish.scope):
        raise InvalidError("A token may do no more than you.", param="scope")
    expires = now() + timedelta(days=days) if days is not None else None
    token = ApiToken(name=name, scope=wish.scope, expires_at=expires, account_id=account_id)
    db.add(token)
    db.flush()
    secret = f"sft_{token.id}_{secrets.token_urlsafe(32)}"
    token.sha256 = hash_secret(secret)
    db.flush()
    return token, secret


def find(db: Session, secret: str) -> ApiToken | None:
    """Return the token that a program shows, if it is one and still lasts."""
    read = PATTERN.fullmatch(secret)
    token = db.get(ApiToken, int(read[1])) if read else None
    if token is None or not hmac.compare_digest(token.sha256, hash_secret(secret)):
        return None
    return token if token.expires_at is None or token.expires_at > now() else None


def touch(db: Session, token_id: int) -> None:
    token = db.get(ApiToken, token_id)
    if token is not None:
        token.used_at = now()


def list_tokens(db: Session, account_id: int | None) -> Sequence[ApiToken]:
    mine = col(ApiToken.account_id) == account_id
    return db.exec(select(ApiToken).where(mine).order_by(col(ApiToken.id).desc())).all()


def revoke(db: Session, token_id: int, account_id: int | None) -> None:
    """Make a token of an account worth nothing.

    Raises:
        NotFoundError: it has none by this number.

    """
    token = db.get(ApiToken, token_id)
    if token is None or token.account_id != account_id:
        raise NotFoundError("There is no such token.", hint="It may be revoked already.")
    db.delete(token)


def ensure_local_token(engine: Engine, file: Path) -> None:
    """Write a token for programs of the same user into the home, unless a good one is there."""
    with unit_of_work(engine) as db:
        if file.exists() and find(db, file.read_text("ascii", "replace").strip()):
            return
        db.exec(
            delete(ApiToken).where(
                col(ApiToken.account_id).is_(None), col(ApiToken.name) == LOCAL_NAME
            )
        )
        _token, secret = create(db, TokenRequest(LOCAL_NAME, Scope.ADMIN, None), None)
    with explain_os_errors(file.parent):
        file.unlink(missing_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as opened:
            opened.write(secret + "\n")
