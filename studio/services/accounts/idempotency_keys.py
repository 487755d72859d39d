"""What was answered under a key: sent again, because the answer was lost, it is not done again."""

from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, delete

from studio.db.idempotency_keys import IdempotencyKey
from studio.errors import ConflictError, InvalidError

RETENTION = timedelta(days=1)
"""How long a key is remembered: longer than any program goes on trying."""

HEADER = "Idempotency-Key"
MAX_LENGTH = 255


def scoped_key(key: str, account_id: int | None) -> str:
    """Return what a key is kept under: two people may choose the same.

    Raises:
        InvalidError: it is none.

    """
    if not 1 <= len(key) <= MAX_LENGTH:
        raise InvalidError(f"A key has 1 to {MAX_LENGTH} characters.", param=HEADER)
    return key if account_id is None else f"{account_id}:{key}"


def discard(db: Session, key: str) -> None:
    """Forget a key: what is sent next under it is wanted anew."""
    db.exec(delete(IdempotencyKey).where(col(IdempotencyKey.key) == key))


def find_answer(db: Session, key: str, sha256: str) -> IdempotencyKey | None:
    """Return what was answered under this key, if it was used.

    Raises:
        InvalidError: the key was used for something else.

    """
    known = db.get(IdempotencyKey, key)
    if known is None or known.created_at < _oldest_kept():
        return None
    if known.sha256 != sha256:
        raise InvalidError(
            "This Idempotency-Key was used for another request.",
            hint="Use a new key for each thing to make.",
            param=HEADER,
        )
    return known


def store_answer(db: Session, receipt: IdempotencyKey) -> None:
    """Keep an answer together with what it tells of.

    Raises:
        ConflictError: another request with the key was faster; nothing of this one may stay.

    """
    db.exec(delete(IdempotencyKey).where(col(IdempotencyKey.created_at) < _oldest_kept()))
    db.add(receipt)
    try:
        db.flush()
    except IntegrityError as error:
        raise ConflictError(
            "Another request with this Idempotency-Key was just answered.",
            hint="Send it again for that answer.",
            param=HEADER,
        ) from error


def _oldest_kept() -> datetime:
    return datetime.now(UTC) - RETENTION
