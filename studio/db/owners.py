"""The owner of a new row, taken from the current actor instead of being passed down.

The web process sets the actor for each request, and the worker for each task that it completes on
behalf of a user. Without an actor, a row belongs to everyone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sqlmodel import Field

import studio.db.accounts  # noqa: F401 -- rows refer to their owner


@dataclass(frozen=True, slots=True)
class Actor:
    name: str = "the local user"
    """The display name; the default is the user and administrator of a studio without accounts."""
    account_id: int | None = None
    is_limited: bool = False
    """Whether the actor may change only their own things and those that belong to everyone."""


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


def owner_column() -> Any:  # noqa: ANN401 -- SQLModel's Field returns Any
    """Return the column for a row's owner; None means everyone."""
    return Field(default_factory=current_owner_id, foreign_key="account.id")
