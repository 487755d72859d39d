"""Finds the route of a request before the router runs, in the router's order and by its rules."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, compile_path

from studio.services.accounts.owners import TABLES_BY_PATH
from studio.web.auth import permissions
from studio.web.auth.permissions import Permission
from studio.web.auth.security_headers import SAFE_METHODS

API_PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteInfo:
    """A route and the permission it requires."""

    template: str
    method: str
    permission: Permission
    pattern: re.Pattern[str]

    @property
    def owned_noun(self) -> str:
        """The noun whose row the path names, such as `runs`; empty if it names none."""
        noun, _, row = self.template.removeprefix(API_PREFIX).removeprefix("/").partition("/{")
        return noun if noun in TABLES_BY_PATH and row else ""

    def path_parameters(self, path: str) -> dict[str, str]:
        matched = self.pattern.match(path)
        return matched.groupdict() if matched else {}


def _unknown_route(method: str) -> RouteInfo:
    """Return a placeholder: a 404 is only for callers who may read, or for changes administer."""
    permission = Permission.READ if method in SAFE_METHODS else Permission.ADMIN
    return RouteInfo(template="", method=method, permission=permission, pattern=re.compile(r"$^"))


class RouteTable:
    """All routes of the studio, by the first segment of their paths."""

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        self._ways: dict[str, list[RouteInfo]] = {}
        schema = Route("/openapi.json", _never_called)  # FastAPI's own
        for info in _iter_routes(
            [schema, *(route for router in routers for route in router.routes)]
        ):
            self._ways.setdefault(_first_segment(info.template), []).append(info)

    def __iter__(self) -> Iterator[RouteInfo]:
        return (info for infos in self._ways.values() for info in infos)

    def find(self, method: str, path: str) -> RouteInfo:
        candidates = self._ways.get(_first_segment(path), ())
        matching = (
            info for info in candidates if info.method == method and info.pattern.match(path)
        )
        return next(matching, None) or _unknown_route(method)


def _never_called(_request: Request) -> Response:
    raise NotImplementedError


def _iter_routes(routes: Iterable[BaseRoute]) -> Iterator[RouteInfo]:
    for route in routes:
        if not isinstance(route, Route):
            continue
        pattern, _path, _converters = compile_path(route.path)
        for method in sorted(route.methods or ()):
            yield RouteInfo(
                template=route.path,
                method=method,
                permission=_required_permission(method, route.path),
                pattern=pattern,
            )


def _required_permission(method: str, template: str) -> Permission:
    try:
        return permissions.required_permission(method, template)
    except KeyError as error:
        raise LookupError(
            f"{method} {template} has no row in studio/web/auth/permissions.py"
        ) from error


def _first_segment(path: str) -> str:
    """Return the key of a path in the table: `runs` for `/runs.csv` and `/runs/3`."""
    parts = path.removeprefix(API_PREFIX).split("/")
    return parts[1].split(".")[0] if len(parts) > 1 else ""
