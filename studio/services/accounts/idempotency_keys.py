"""Idempotency keys: a repeated request gets the stored response instead of running again."""

from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, delete

from studio.db.accounts import IdempotencyKey
from studio.errors import ConflictError, InvalidError

RETENTION = timedelta(days=1)
"""How long a key is stored: longer than any client retries."""

HEADER = "Idempotency-Key"
MAX_LENGTH = 255


def scoped_key(key: str, account_id: int | None) -> str:
    """Return the key as stored: prefixed by the account, since two users may choose the same.

    Raises:
        InvalidError: It is empty or too long.

    """
    if not 1 <= len(key) <= MAX_LENGTH:
        raise InvalidError(f"Use a key of 1 to {MAX_LENGTH} characters.", param=HEADER)
    return key if account_id is None else f"{account_id}:{key}"


def discard(db: Session, key: str) -> None:
    """Delete a key, so that the next request with it runs."""
    db.exec(delete(IdempotencyKey).where(col(IdempotencyKey.key) == key))


def find_answer(db: Session, key: str, sha256: str) -> IdempotencyKey | None:
    """Return the response stored under a key, if there is one.

    Raises:
        InvalidError: The key was used for another request.

    """
    answer = db.get(IdempotencyKey, key)
    if answer is None or answer.created_at < _oldest_kept():
        return None
    if answer.sha256 != sha256:
        raise InvalidError(
            "This Idempotency-Key was used for another request.",
            hint="Use a new key for each new request.",
            param=HEADER,
        )
    return answer


def store_answer(db: Session, answer: IdempotencyKey) -> None:
    """Store a response in the same transaction as the change it reports.

    Raises:
        ConflictError: Another request with this key was faster; roll this one back.

    """
    db.exec(delete(IdempotencyKey).where(col(IdempotencyKey.created_at) < _oldest_kept()))
    db.add(answer)
    try:
        db.flush()
    except IntegrityError as error:
        raise ConflictError(
            "Another request with this Idempotency-Key has just finished.",
            hint="Send the request again to get its response.",
            param=HEADER,
        ) from error


def _oldest_kept() -> datetime:
    return datetime.now(UTC) - RETENTION
