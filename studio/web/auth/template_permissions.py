"""What whoever looks at a page may do there: told to templates before the door says it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from studio.services.accounts import owners
from studio.web.auth.identity import Identity
from studio.web.auth.permissions import Permission
from studio.web.auth.route_table import RouteTable


class Owned(Protocol):
    owner_id: int | None


@dataclass(frozen=True, slots=True)
class _Viewer:
    identity: Identity | None
    routes: RouteTable


_VIEWER: ContextVar[_Viewer | None] = ContextVar("visit", default=None)


@contextmanager
def rendering_for(who: Identity | None, ways: RouteTable) -> Iterator[None]:
    """Draw pages for somebody; None is nobody we know."""
    before = _VIEWER.set(_Viewer(who, ways))
    try:
        yield
    finally:
        _VIEWER.reset(before)


def may(method: str, address: str, row: Owned | None = None) -> bool:
    """Whether what a page offers would be let in, so that it offers nothing else.

    `row` is what it would be done to, where that is somebody's. A page that is drawn for nobody
    offers everything.

    Raises:
        LookupError: no route has this address, so a page that offers it is wrong.

    """
    visit = _VIEWER.get()
    if visit is None:
        return True
    way = visit.routes.find(method, address.partition("?")[0])
    if not way.template:
        raise LookupError(f"{method} {address} leads nowhere")
    if visit.identity is None or not visit.identity.may(way.permission):
        return way.permission is Permission.OPEN
    return row is None or owners.may_change(row.owner_id)
