"""Lets templates check what the viewer of a page may do."""

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
    """Render pages for a viewer; None is a viewer who is not signed in."""
    reset_token = _VIEWER.set(_Viewer(who, ways))
    try:
        yield
    finally:
        _VIEWER.reset(reset_token)


def may(method: str, address: str, row: Owned | None = None) -> bool:
    """Whether the viewer may send a request, so that pages offer only what is allowed.

    `row` is the affected row, if rows of its kind have owners. Outside of `rendering_for`,
    everything is allowed.

    Raises:
        LookupError: No route has this path, so the page has a wrong link.

    """
    viewer = _VIEWER.get()
    if viewer is None:
        return True
    route = viewer.routes.find(method, address.partition("?")[0])
    if not route.template:
        raise LookupError(f"{method} {address} has no route")
    if viewer.identity is None or not viewer.identity.may(route.permission):
        return route.permission is Permission.OPEN
    return row is None or owners.may_change(row.owner_id)
