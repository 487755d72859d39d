"""API tokens for programs. Only their hashes are stored."""

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
from studio.services.accounts.login_sessions import hash_secret
from studio.services.storage.locks import explain_os_errors

PATTERN = re.compile(r"sft_(\d{1,18})_([\w-]{43})", re.ASCII)
"""Id, then 32 random bytes. The prefix lets secret scanners recognise a token."""

LOCAL_NAME = "this machine"
"""Name of the token in the home, for programs of the same operating-system user."""

MAX_DAYS = 366


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """The properties of a new token."""

    name: str
    scope: Scope
    days: int | None
    """Lifetime in days; None for no expiry."""


def create(
    db: Session, request: TokenRequest, account_id: int | None, max_scope: Scope = Scope.ADMIN
) -> tuple[ApiToken, str]:
    """Create a token. Return it with its secret, which cannot be retrieved again.

    Raises:
        InvalidError: The name is empty, the lifetime is out of range, or the scope exceeds the
            creator's.

    """
    name, days = request.name.strip()[:100], request.days
    if not name:
        raise InvalidError(
            "Enter a name for the token.", hint="Describe what uses it.", param="name"
        )
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InvalidError(f"A token can last 1 to {MAX_DAYS} days.", param="days")
    if not max_scope.includes(request.scope):
        raise InvalidError("A token cannot have a larger scope than you have.", param="scope")
    expires = now() + timedelta(days=days) if days is not None else None
    token = ApiToken(name=name, scope=request.scope, expires_at=expires, account_id=account_id)
    db.add(token)
    db.flush()
    secret = f"sft_{token.id}_{secrets.token_urlsafe(32)}"
    token.sha256 = hash_secret(secret)
    db.flush()
    return token, secret


def find(db: Session, secret: str) -> ApiToken | None:
    """Return the token for a secret, if it is valid and has not expired."""
    match = PATTERN.fullmatch(secret)
    token = db.get(ApiToken, int(match[1])) if match else None
    if token is None or not hmac.compare_digest(token.sha256, hash_secret(secret)):
        return None
    return token if token.expires_at is None or token.expires_at > now() else None


def touch(db: Session, token_id: int) -> None:
    token = db.get(ApiToken, token_id)
    if token is not None:
        token.used_at = now()


def list_tokens(db: Session, account_id: int | None) -> Sequence[ApiToken]:
    is_owned = col(ApiToken.account_id) == account_id
    return db.exec(select(ApiToken).where(is_owned).order_by(col(ApiToken.id).desc())).all()


def revoke(db: Session, token_id: int, account_id: int | None) -> None:
    """Delete a token of an account.

    Raises:
        NotFoundError: The account has no such token.

    """
    token = db.get(ApiToken, token_id)
    if token is None or token.account_id != account_id:
        raise NotFoundError("This token does not exist.", hint="It may have been revoked.")
    db.delete(token)


def ensure_local_token(engine: Engine, file: Path) -> None:
    """Write a token for programs of the same user into the home, unless a valid one is there."""
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
        with os.fdopen(handle, "w", encoding="ascii") as token_file:
            token_file.write(secret + "\n")
