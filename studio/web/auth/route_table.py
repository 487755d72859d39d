"""Which route an address leads to, told before the router is asked: in its order, by its rules."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, compile_path

from studio.services.accounts.owners import TABLES_BY_PATH
from studio.web.auth import permissions
from studio.web.auth.permissions import Asks
from studio.web.auth.security_headers import SAFE

API = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A route, and what it asks for."""

    template: str
    method: str
    asks: Asks
    pattern: re.Pattern[str]

    @property
    def noun(self) -> str:
        """What its address names a row of, as `runs`; nothing if it names none."""
        noun, _, row = self.template.removeprefix(API).removeprefix("/").partition("/{")
        return noun if noun in TABLES_BY_PATH and row else ""

    def subject(self, path: str) -> dict[str, str]:
        found = self.pattern.match(path)
        return found.groupdict() if found else {}


def _unknown(method: str) -> Way:
    """Return what leads nowhere: only who might do anything there is told so."""
    asks = Asks.READ if method in SAFE else Asks.ADMIN
    return Way(template="", method=method, asks=asks, pattern=re.compile(r"$^"))


class Ways:
    """All routes of the studio, by the first part of their addresses."""

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        self._ways: dict[str, list[Way]] = {}
        schema = Route("/openapi.json", _nothing)  # FastAPI's own
        for way in _ways([schema, *(route for router in routers for route in router.routes)]):
            self._ways.setdefault(_first(way.template), []).append(way)

    def __iter__(self) -> Iterator[Way]:
        return (way for ways in self._ways.values() for way in ways)

    def of(self, method: str, path: str) -> Way:
        found = self._ways.get(_first(path), ())
        fitting = (way for way in found if way.method == method and way.pattern.match(path))
        return next(fitting, None) or _unknown(method)


def _nothing(_request: Request) -> Response:
    raise NotImplementedError


def _ways(routes: Iterable[BaseRoute]) -> Iterator[Way]:
    for route in routes:
        if not isinstance(route, Route):
            continue
        pattern, _path, _converters = compile_path(route.path)
        for method in sorted(route.methods or ()):
            yield Way(
                template=route.path,
                method=method,
                asks=_asked(method, route.path),
                pattern=pattern,
            )


def _asked(method: str, template: str) -> Asks:
    try:
        return permissions.asked(method, template)
    except KeyError as error:
        raise LookupError(
            f"{method} {template} has no row in studio/web/auth/permissions.py"
        ) from error


def _first(path: str) -> str:
    """Return what addresses are sorted by: `/runs.csv` and `/runs/3` stand under `runs`."""
    parts = path.removeprefix(API).split("/")
    return parts[1].split(".")[0] if len(parts) > 1 else ""
