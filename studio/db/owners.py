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


_DEFAULT_ACTOR = Actor()
_CURRENT_ACTOR: ContextVar[Actor] = ContextVar("acting", default=_DEFAULT_ACTOR)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    before = _CURRENT_ACTOR.set(actor)
    try:
        yield
    finally:
        _CURRENT_ACTOR.reset(before)


def current_actor() -> Actor:
    return _CURRENT_ACTOR.get()


def current_owner_id() -> int | None:
    return _CURRENT_ACTOR.get().account_id


def owner_column() -> Any:  # noqa: ANN401 -- what SQLModel's Field gives has no nameable type
    """Make the column of a row's owner; None is everyone."""
    return Field(default_factory=current_owner_id, foreign_key="account.id")
