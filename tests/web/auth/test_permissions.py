"""Every route, walked by everybody: in exactly where the table says so, out everywhere else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import update
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Asked

from studio.db.accounts import Role, Scope
from studio.db.endpoints import Endpoint
from studio.db.feedback import Feedback
from studio.db.session import unit_of_work
from studio.db.summaries import SavedComparison, SavedView
from studio.db.tables import Study, Sweep
from studio.db.tasks import Task
from studio.recipe.search_space import SEARCH_SPACE_ADAPTER
from studio.services.accounts.owners import TABLES_BY_PATH
from studio.services.operations.home import open_home
from studio.web.auth.permissions import ROUTE_PERMISSIONS
from studio.web.auth.route_table import RouteInfo, RouteTable
from studio.web.middleware.auth_middleware import AuthMiddleware
from studio.web.middleware.request_metrics import RequestMetrics, RequestMetricsMiddleware
from tests.support.factories import make_recipe, make_run
from tests.support.template_homes import TemplateHome
from tests.support.visitors import Visitors, make_visitors

WAYS = list(RouteTable())
IN, REFUSED = 204, 403

MAY = {
    "viewer": {"open", "own", "read"},
    "member": {"open", "own", "read", "submit", "manage"},
    "other member": {"open", "own", "read", "submit", "manage"},
    "administrator": {"open", "own", "read", "submit", "manage", "admin"},
    "token read": {"open", "read"},
    "token submit": {"open", "read", "submit"},
    "token manage": {"open", "read", "submit", "manage"},
    "token admin": {"open", "own", "read", "submit", "manage", "admin"},
}


@pytest.fixture(scope="module")
def at_the_door(furnished_house: Visitors) -> dict[str, TestClient]:
    """Return everybody, each before a door behind which whoever is let in hears 204."""
    home = furnished_house

    async def behind(scope: Asked, receive: Receive, send: Send) -> None:
        await Response(status_code=IN)(scope, receive, send)

    door = RequestMetricsMiddleware(
        AuthMiddleware(behind, RouteTable(), home.settings), RequestMetrics()
    )

    async def before(scope: Asked, receive: Receive, send: Send) -> None:
        await door({**scope, "app": home.app}, receive, send)

    def visitor(like: TestClient) -> TestClient:
        return TestClient(before, cookies=like.cookies, headers=dict(like.headers))

    people = {
        "viewer": home.person("vera", Role.VIEWER),
        "member": home.person("ann", Role.MEMBER),
        "other member": home.person("bob", Role.MEMBER),
        "administrator": home.person("root", Role.ADMINISTRATOR),
    }
    programs = {f"token {scope.value}": home.program(scope, "root") for scope in Scope}
    return {name: visitor(one) for name, one in (people | programs).items()}


@pytest.fixture(scope="module")
def furnished_house(
    furnished: TemplateHome, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visitors]:
    """Return a studio in which ann owns the first row of each noun."""
    folder = tmp_path_factory.mktemp("walked") / "home"
    settings = furnished.copy(folder, allowed_hosts="testserver")
    engine = open_home(settings)
    home = make_visitors(engine, settings, "accounts")
    ann = home.account("ann", Role.MEMBER)
    with unit_of_work(home.engine) as db:
        make_run(db)
        space = SEARCH_SPACE_ADAPTER.validate_python({"seed": {"values": [1, 2]}})
        about: dict[str, Any] = {"experiment_id": 1, "name": "x", "recipe": make_recipe()}
        db.add(Sweep(space=space, strategy="grid", count=2, **about))
        db.add_all([Study(experiment_id=1, name="x"), Task(kind="look", subject="dataset:1")])
        db.add_all([SavedComparison(name="x", query=""), SavedView(name="x", query="")])
        db.add(Feedback(kind="preference", key="x", said_in="chat"))
        db.add(Endpoint(name="x", engine="studio", run_id=1))
        db.flush()
        for kind in set(TABLES_BY_PATH.values()):
            db.exec(update(kind).values(owner_id=ann))
    yield home
    engine.dispose()


def path_of(way: RouteInfo) -> str:
    return re.sub(r"{[^}]*}", "1", way.template)


def expected(who: str, way: RouteInfo) -> int:
    is_owned = way.permission == "manage" and bool(way.owned_noun)
    if way.permission not in MAY[who] or (who == "other member" and is_owned):
        return REFUSED
    return IN


@pytest.mark.parametrize("who", MAY)
def test_each_role_can_access_exactly_its_routes(
    at_the_door: dict[str, TestClient], who: str
) -> None:
    visitor = at_the_door[who]

    answers = {way: visitor.request(way.method, path_of(way)).status_code for way in WAYS}

    assert answers == {way: expected(who, way) for way in WAYS}


def test_closed_routes_reject_unauthenticated_visitors(furnished_house: Visitors) -> None:
    stranger = furnished_house.stranger()
    closed = [way for way in WAYS if way.permission != "open"]

    answers = {way: stranger.request(way.method, path_of(way)).status_code for way in closed}

    programs = ("/api/", "/v1/", "/metrics", "/openapi.json")
    assert answers == {way: 401 if way.template.startswith(programs) else 303 for way in closed}


def test_only_listed_routes_are_open() -> None:
    found = {f"{way.method} {way.template}" for way in WAYS if way.permission == "open"}

    assert found == {
        "GET /api/v1/health",
        "POST /language",
        "GET /login",
        "GET /login/oidc",
        "GET /login/oidc/done",
        "POST /login",
        "POST /login/password",
        "POST /logout",
    }


def test_permission_table_matches_routes() -> None:
    assert set(ROUTE_PERMISSIONS) == {way.template for way in WAYS}


BY_NAME = {
    *("DELETE /v1/files/{file_id}", "DELETE /v1/models/{name:path}"),
    *(f"POST /v1/fine_tuning/jobs/{{job_id}}/{verb}" for verb in ("cancel", "pause", "resume")),
}
"""What OpenAI's clients name in words of their own; the route itself asks whose it is."""


def test_only_openai_manage_routes_declare_no_owned_object() -> None:
    found = {
        f"{way.method} {way.template}"
        for way in WAYS
        if way.permission == "manage" and "{" in way.template and not way.owned_noun
    }

    assert found == BY_NAME


def test_no_get_route_needs_manage_permission() -> None:
    """A verb that is safe asks for no more than to look, but about what few may see."""
    found = {way.template for way in WAYS if way.method == "GET" and way.permission == "manage"}

    assert found == set()
