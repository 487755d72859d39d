"""The addresses of the studio, and the tables by which their routers are found and imported."""

import re
import subprocess
import sys
from collections import Counter

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from studio.web.auth.permissions import ROUTE_PERMISSIONS
from studio.web.auth.route_table import RouteTable
from studio.web.routers import API, PAGES, address_of, load_router

ROUTERS = PAGES | API
NOT_AT_START = (
    *("alembic", "cryptography", "httpx2", "huggingface_hub", "optuna", "pyarrow", "rich", "torch"),
    *("studio.web.openapi_extras", "studio.services.runs.start_checks"),
    *("studio.intake.conversion.converter", "studio.services.search.palette_search"),
)
"""What the web process imports when it is first needed."""

LOAD_ALL_AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from studio.web.routers import API, PAGES, LazyRoutes
lazy = LazyRoutes(PAGES | API)
addresses = sorted({one for many in (PAGES | API).values() for one in many.split()})
with ThreadPoolExecutor(len(addresses)) as pool:
    print(sum(bool(router.routes) for router in pool.map(lazy._load, addresses)), len(addresses))
"""
ROUTES = [route for name in ROUTERS for route in load_router(name).routes]
CALLS = [
    (method, route.path)
    for route in ROUTES
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
]


def filled(template: str, value: str) -> str:
    """Return a path that a template matches."""
    path = re.sub(r"{[^}]*:path}", f"{value}/{value}", template)
    return re.sub(r"{[^}]*}", value, path)


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_web_process_starts_without_pages_and_heavy_modules() -> None:
    routers = {f"studio.web.{name.partition(':')[0]}" for name in ROUTERS}
    loaded = set(in_new_process("import sys, studio.web.app; print(*sys.modules)").split())

    assert loaded & {*NOT_AT_START, *routers} == set()
    assert "studio.web.routers" in loaded


def test_routers_can_all_be_asked_for_at_once() -> None:
    routers, addresses = in_new_process(LOAD_ALL_AT_ONCE).split()

    assert routers == addresses


def test_all_routes_are_of_fastapi() -> None:
    assert [route for route in ROUTES if not isinstance(route, APIRoute)] == []


@pytest.mark.parametrize("name", ROUTERS)
def test_each_router_names_its_addresses(name: str) -> None:
    paths = [route.path for route in load_router(name).routes if isinstance(route, APIRoute)]

    assert {address_of(path) for path in paths} == set(ROUTERS[name].split())


def test_each_row_of_permissions_has_a_route() -> None:
    rows = {
        (entry.split(" ")[0], template)
        for template, entries in ROUTE_PERMISSIONS.items()
        for entry in entries.split(", ")
    }
    of_the_app = {("GET", "/openapi.json"), ("HEAD", "/openapi.json")}

    assert rows - set(CALLS) == of_the_app


@pytest.mark.parametrize("value", ["1", "new", "consent"])
def test_permissions_are_of_the_route_that_answers(value: str) -> None:
    """Of several routes that match a path, the table must choose the one that the router does."""
    table = RouteTable()
    differing = {}
    for method, template in CALLS:
        path = filled(template, value)
        scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
        answering = next(one for one in ROUTES if one.matches(dict(scope))[0] is Match.FULL)
        allowed = table.find(method, path).template
        if getattr(answering, "path", None) != allowed:
            differing[method, path] = (answering, allowed)

    assert len(CALLS) > 400
    assert differing == {}, "Put the row of the first before that of the second."


def test_every_route_has_unique_path() -> None:
    found = Counter((method, re.sub(r"{[^}]*}", "{}", path)) for method, path in CALLS)
    assert len(found) > 100
    assert [address for address, count in found.items() if count > 1] == []
