"""Whose a new row is: known from who acts, so that no verb has to hand it down.

The web process says for each request who acts, and the worker for each thing that it ends on
somebody's behalf. Where nobody says, a row is everyone's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sqlmodel import Field

import studio.db.accounts  # noqa: F401 -- a row refers to its owner


@dataclass(frozen=True, slots=True)
class Actor:
    name: str = "the local user"
    """Who uses a studio without accounts, and administers it."""
    account_id: int | None = None
    is_limited: bool = False
    """Whether only one's own and everyone's things may be changed."""


_NOBODY = Actor()
_ACTING: ContextVar[Actor] = ContextVar("acting", default=_NOBODY)


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    before = _ACTING.set(actor)
    try:
        yield
    finally:
        _ACTING.reset(before)


def actor() -> Actor:
    return _ACTING.get()


def whose() -> int | None:
    return _ACTING.get().account_id


def owner() -> Any:  # noqa: ANN401 -- what SQLModel's Field gives has no nameable type
    """Make the column of a row's owner; None is everyone."""
    return Field(default_factory=whose, foreign_key="account.id")
