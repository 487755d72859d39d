"""Endpoints behind /v1: listed by name, passed on to a real program, errors in OpenAI's shape."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.accounts import Scope
from studio.db.endpoints import Endpoint
from studio.db.session import read_session, unit_of_work
from studio.db.states import EndpointState
from studio.services.endpoints import endpoints, lifecycle, usage
from studio.services.endpoints.sources import Source
from studio.settings import Settings
from studio.web.app import create_app
from tests.support import served_exports
from tests.support.serving_workers import run_worker
from tests.support.visitors import Visitors
from tests.support.waiting import wait_until

ASKED: dict[str, Any] = {"model": "pets", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Name a llama-server in a setting."""
    program = served_exports.write_program(tmp_path / "bin")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    changes = {"llama_server": str(program), "endpoint_wait_seconds": 120.0}
    return settings.model_copy(update=changes)


@pytest.fixture
def _worker(engine: Engine, settings: Settings) -> Iterator[None]:
    with run_worker(engine, settings):
        yield


def create(engine: Engine, settings: Settings, **part: Any) -> None:  # noqa: ANN401 -- any field of Part
    with unit_of_work(engine) as db:
        source = served_exports.add(db, settings, **part)
        endpoints.create(db, settings, "pets", source, "llama.cpp")


def row(engine: Engine) -> Endpoint:
    with read_session(engine) as db:
        return endpoints.get(db, 1)


def error(client: TestClient, **changes: Any) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 -- any field of a request
    response = client.post("/v1/chat/completions", json=ASKED | changes)
    return response.status_code, response.json()["error"]


@pytest.mark.usefixtures("_worker")
def test_requests_are_passed_on_with_fields_that_only_the_engine_knows(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    create(engine, settings)

    chat = client.post("/v1/chat/completions", json=ASKED | {"top_k": 40, "grammar": "root"})
    text = client.post("/v1/completions", json={"model": "pets", "prompt": "Go"})

    assert chat.json()["choices"][0]["message"]["content"] == "Good."
    assert (chat.json()["model"], text.json()["choices"][0]["text"]) == ("pets", "Good.")
    source = endpoints_source(engine)
    first, second = served_exports.list_requests(settings, source)
    assert first == {
        "path": "/v1/chat/completions",
        "body": ASKED | {"top_k": 40, "grammar": "root"},
    }
    assert second["path"] == "/v1/completions"
    wait_until(lambda: row(engine).busy_until is None)
    assert row(engine).requests == 2


def endpoints_source(engine: Engine) -> Source:
    one = row(engine)
    return Source(run_id=one.run_id, export_id=one.export_id)


@pytest.mark.usefixtures("_worker")
def test_streamed_answer_is_passed_through(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    create(engine, settings)

    with client.stream("POST", "/v1/chat/completions", json=ASKED | {"stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]

    words = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines[:-1]]
    assert (words, lines[-1]) == (["Go", "od."], "data: [DONE]")


@pytest.mark.usefixtures("_worker")
def test_answer_that_breaks_off_ends_with_an_error(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    create(engine, settings, dies_before_last=True)

    with client.stream("POST", "/v1/chat/completions", json=ASKED | {"stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line]

    failed = json.loads(lines[-1][6:])["error"]
    assert failed["type"] == "server_error"
    assert failed["message"].startswith("The endpoint pets ")
    wait_until(lambda: row(engine).crashes == 1 or row(engine).state is EndpointState.READY)


@pytest.mark.usefixtures("_worker")
@pytest.mark.parametrize(
    ("status", "told", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (404, 404, "invalid_request_error"),
        (429, 429, "invalid_request_error"),
        (500, 503, "server_error"),
    ],
)
def test_refusal_of_the_engine_is_told_in_its_words(
    client: TestClient, engine: Engine, settings: Settings, status: int, told: int, kind: str
) -> None:
    create(engine, settings, refuses="The context is too short.", refuses_with=status)

    code, refused = error(client)
    assert (code, refused["type"]) == (told, kind)
    assert "The context is too short." in refused["message"]
    assert refused["code"] == f"engine_{status}"


def test_endpoint_that_does_not_start_in_time_is_told_in_words(
    client: TestClient, engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    create(engine, settings, loads_until=str(tmp_path / "never"))
    client.app.state.settings = settings.model_copy(  # type: ignore[attr-defined] # Starlette's
        update={"endpoint_wait_seconds": 0.2}
    )
    with run_worker(engine, settings):
        code, refused = error(client)

    assert (code, refused["code"]) == (503, "endpoint_starting")
    assert refused["message"].startswith("The endpoint pets did not start within 0 s")


def test_stopped_and_failing_endpoints_say_so(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    create(engine, settings)
    with unit_of_work(engine) as db:
        endpoints.stop(endpoints.get(db, 1))
    assert error(client)[1]["message"] == (
        "The endpoint pets is stopped. Start it on the Serve page."
    )

    with unit_of_work(engine) as db:
        one = endpoints.get(db, 1)
        endpoints.start(one)
        one.crashes = lifecycle.MAX_CRASHES - 1
        lifecycle.record_crash(one, "llama.cpp ended with code 3.", "Its log ends with: no.")
    assert error(client)[1] == {
        "message": "The endpoint pets failed: llama.cpp ended with code 3. Its log ends with: no.",
        "type": "server_error",
        "param": None,
        "code": "endpoint_failed",
    }


def test_request_that_finds_no_slot_is_told_what_occupies_it(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    create(engine, settings)
    with unit_of_work(engine) as db:
        endpoints.get(db, 1).note = "waiting for run 7 to end"

    code, refused = error(client)
    assert (code, refused["code"]) == (503, usage.NO_SLOT)
    assert refused["message"].startswith(
        "No slot is free for the endpoint pets: waiting for run 7 to end."
    )


def test_endpoints_are_listed_by_name(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    create(engine, settings)

    listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert listed[0] == "pets"
    assert client.get("/v1/models/pets").json()["id"] == "pets"
    assert client.delete("/v1/models/pets").status_code == 409
    with unit_of_work(engine) as db:
        endpoints.stop(endpoints.get(db, 1))
    assert "pets" not in [model["id"] for model in client.get("/v1/models").json()["data"]]


def test_only_tokens_that_may_submit_can_ask(engine: Engine, settings: Settings) -> None:
    create(engine, settings)
    app = create_app(engine, settings.model_copy(update={"sign_in": "link"}))
    visitors = Visitors(app, engine, settings)
    with unit_of_work(engine) as db:
        endpoints.stop(endpoints.get(db, 1))

    def ask(program: TestClient) -> int:
        return program.post("/v1/chat/completions", json=ASKED).status_code

    assert ask(visitors.stranger()) == 401
    assert ask(visitors.program(Scope.READ)) == 403
    assert ask(visitors.program(Scope.SUBMIT)) == 409, "It may ask; the endpoint is stopped."
