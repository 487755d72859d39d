"""Submitting under a key: what is sent again, because the answer was lost, is not done again."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlmodel import Session, col, delete

from studio.db.tables import Receipt, Run
from studio.errors import InvalidError
from studio.services import runs

KEPT = timedelta(days=1)
"""How long a key is remembered: longer than any program goes on trying."""


def once(db: Session, key: str, sent: bytes, submit: Callable[[], Run]) -> Run:
    """Submit a run, or return the one that was submitted under this key before.

    An empty key stands for none. The receipt is stored with the run or not at all.

    Raises:
        InvalidError: the key was used for something else.

    """
    if not key:
        return submit()
    sha256 = hashlib.sha256(sent).hexdigest()
    known = db.get(Receipt, key)
    if known is not None and known.sha256 != sha256:
        raise InvalidError(
            "This Idempotency-Key was used for another request.",
            hint="Use a new key for each run.",
            param="Idempotency-Key",
        )
    if known is not None:
        return runs.get(db, known.run_id)
    db.exec(delete(Receipt).where(col(Receipt.created_at) < datetime.now(UTC) - KEPT))
    run = submit()
    db.add(Receipt(key=key, sha256=sha256, run_id=run.id or 0))
    return run
