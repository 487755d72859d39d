"""Tokens: made, shown once, of a scope, for a time, revoked."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlmodel import select

from studio.db.accounts import ApiToken, Role, Scope
from studio.db.column_types import now
from studio.db.session import read_session, unit_of_work
from studio.settings import Settings
from tests.support.factories import make_running
from tests.support.page_reader import parse_page
from tests.support.visitors import Visitors, make_visitors

RUN = {"name": "x", "recipe": {"base_model": "starter", "dataset": "starter"}}


@pytest.fixture
def home(engine: Engine, settings: Settings) -> Visitors:
    return make_visitors(engine, settings, "link")


def test_token_is_shown_once_and_authenticates(home: Visitors) -> None:
    form = {"name": "nightly", "scope": "submit", "days": "30"}
    page = parse_page(home.owner().post("/settings/access/tokens", data=form).text)
    secret = page.one(id="made-secret").attributes["value"]
    headers = {"Authorization": f"Bearer {secret}"}

    assert home.stranger().post("/api/v1/runs", json=RUN, headers=headers).status_code == 201
    assert secret not in home.owner().get("/settings/access").text


def test_only_token_hash_is_stored(home: Visitors) -> None:
    secret = home.owner().post("/api/v1/tokens", json={"name": "n"}).json()["token"]

    with read_session(home.engine) as db:
        kept = db.exec(select(ApiToken)).one()

    assert secret not in kept.model_dump_json()
    assert secret.startswith(f"sft_{kept.id}_")


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (Scope.READ, [200, 403, 403, 403]),
        (Scope.SUBMIT, [200, 201, 403, 403]),
        (Scope.MANAGE, [200, 201, 200, 403]),
        (Scope.ADMIN, [200, 201, 200, 201]),
    ],
)
def test_each_scope_includes_lower_scopes(
    home: Visitors, scope: Scope, expected: list[int]
) -> None:
    with unit_of_work(home.engine) as db:
        make_running(db)
    program = home.program(scope)

    answers = [
        program.get("/api/v1/runs"),
        program.post("/api/v1/runs", json=RUN),
        program.patch("/api/v1/runs/1", json={"name": "y"}),
        program.post("/api/v1/tokens", json={"name": "another"}),
    ]

    assert [one.status_code for one in answers] == expected


def test_token_scope_cannot_exceed_role_of_creator(home: Visitors) -> None:
    viewer = home.person("vera", Role.VIEWER)

    answer = viewer.post("/api/v1/tokens", json={"name": "n", "scope": "manage"})

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "scope")


def test_token_loses_rights_when_creator_is_demoted(home: Visitors) -> None:
    ann = home.person("ann", Role.MEMBER)
    secret = ann.post("/api/v1/tokens", json={"name": "n", "scope": "manage"}).json()["token"]
    home.owner().post("/settings/people/1/role", data={"role": "viewer"})
    headers = {"Authorization": f"Bearer {secret}"}

    answer = home.stranger().post("/api/v1/runs", json=RUN, headers=headers)

    assert answer.status_code == 403


def test_expired_token_is_rejected(home: Visitors) -> None:
    program = home.program(Scope.READ)
    with unit_of_work(home.engine) as db:
        db.exec(select(ApiToken)).one().expires_at = now() - timedelta(seconds=1)

    assert program.get("/api/v1/runs").status_code == 401


def test_last_use_of_token_is_recorded(home: Visitors) -> None:
    program, owner = home.program(Scope.READ), home.owner()
    before = owner.get("/api/v1/tokens").json()["data"][0]["used_at"]
    program.get("/api/v1/runs")

    assert before is None
    assert owner.get("/api/v1/tokens").json()["data"][0]["used_at"] is not None


def test_token_use_is_written_once_per_minute(home: Visitors) -> None:
    program = home.program(Scope.READ)
    earlier = now() - timedelta(seconds=30)
    with unit_of_work(home.engine) as db:
        db.exec(select(ApiToken)).one().used_at = earlier
    program.get("/api/v1/runs")

    with read_session(home.engine) as db:
        assert db.exec(select(ApiToken)).one().used_at == earlier


def test_revoked_token_is_rejected(home: Visitors) -> None:
    program = home.program(Scope.READ)

    assert home.owner().delete("/api/v1/tokens/1").status_code == 204
    assert program.get("/api/v1/runs").status_code == 401


def test_users_cannot_revoke_tokens_of_others(home: Visitors) -> None:
    home.program(Scope.READ, "root")

    assert home.person("ann", Role.MEMBER).delete("/api/v1/tokens/1").status_code == 404


@pytest.mark.parametrize(("field", "value"), [("name", " "), ("days", "0"), ("days", "many")])
def test_invalid_token_form_shows_error(home: Visitors, field: str, value: str) -> None:
    form = {"name": "nightly", "scope": "read", "days": "30"} | {field: value}

    answer = home.owner().post("/settings/access/tokens", data=form)

    assert answer.status_code == 422
    assert parse_page(answer.text).all(role="alert") != []


def test_stream_ends_when_token_is_revoked(home: Visitors) -> None:
    with unit_of_work(home.engine) as db:
        make_running(db)
    home.app.state.look_again_seconds = 0
    program = home.program(Scope.READ)

    ended = asyncio.run(streamed(home, program.headers["authorization"]))

    assert ended


async def streamed(home: Visitors, shown: str) -> bool:
    """Open a live stream and revoke its token. Return whether the stream was ended."""
    sent: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    headers = [(b"host", b"testserver"), (b"authorization", shown.encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/api/v1/stream",
        "raw_path": b"/api/v1/stream",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("testserver", 80),
    }
    async with home.app.router.lifespan_context(home.app):
        stays = asyncio.Event()

        async def receive() -> dict[str, object]:
            if not stays.is_set():
                stays.set()
                return {"type": "http.request", "body": b"", "more_body": False}
            return await asyncio.Future()

        open_one = asyncio.create_task(home.app(scope, receive, sent.put))  # type: ignore[arg-type] # as ASGI has it
        first = await sent.get()
        await sent.get()
        assert first["status"] == 200
        with unit_of_work(home.engine) as db:
            db.delete(db.exec(select(ApiToken)).one())
        while (await sent.get()).get("more_body", True):
            pass
        await open_one
    return True
