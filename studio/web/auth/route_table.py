"""Finds the route of a request before the router runs, in the order of the permission table."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from starlette.routing import compile_path

from studio.services.accounts.owners import TABLES_BY_PATH
from studio.web.auth.permissions import Permission, iter_rows
from studio.web.auth.security_headers import SAFE_METHODS

API_PREFIX = "/api/v1"


@dataclass(frozen=True, kw_only=True)
class RouteInfo:
    """A route and the permission it requires."""

    template: str
    method: str
    permission: Permission

    @property
    def owned_noun(self) -> str:
        """The noun whose row the path names, such as `runs`; empty if it names none."""
        noun, _, row = self.template.removeprefix(API_PREFIX).removeprefix("/").partition("/{")
        return noun if noun in TABLES_BY_PATH and row else ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What its paths look like; compiled when first asked, as there are hundreds."""
        pattern, _path, _converters = compile_path(self.template)
        return pattern

    def path_parameters(self, path: str) -> dict[str, str]:
        matched = self.pattern.match(path)
        return matched.groupdict() if matched else {}


def _unknown_route(method: str) -> RouteInfo:
    """Return a placeholder: a 404 is only for callers who may read, or for changes administer."""
    permission = Permission.READ if method in SAFE_METHODS else Permission.ADMIN
    return RouteInfo(template="", method=method, permission=permission)


class RouteTable:
    """All routes of the studio, by the first segment of their paths."""

    def __init__(self) -> None:
        self._ways: dict[str, list[RouteInfo]] = {}
        for template, method, permission in iter_rows():
            info = RouteInfo(template=template, method=method, permission=permission)
            self._ways.setdefault(first_segment(template), []).append(info)

    def __iter__(self) -> Iterator[RouteInfo]:
        return (info for infos in self._ways.values() for info in infos)

    def find(self, method: str, path: str) -> RouteInfo:
        candidates = self._ways.get(first_segment(path), ())
        matching = (
            info for info in candidates if info.method == method and info.pattern.match(path)
        )
        return next(matching, None) or _unknown_route(method)


def first_segment(path: str) -> str:
    """Return the key of a path in the table: `runs` for `/runs.csv` and `/runs/3`."""
    parts = path.removeprefix(API_PREFIX).split("/")
    return parts[1].split(".")[0] if len(parts) > 1 else ""
