"""The Serve page, its form, its API and the buttons that lead to it."""

import os
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.endpoints import Endpoint
from studio.db.session import read_session, unit_of_work
from studio.db.states import EndpointState
from studio.services.endpoints import endpoints, lifecycle, sources
from studio.services.endpoints.sources import Source
from studio.settings import Settings
from tests.support import served_exports
from tests.support.page_reader import Node, parse_page


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = served_exports.write_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return program


@pytest.fixture
def source(engine: Engine, settings: Settings) -> Source:
    with unit_of_work(engine) as db:
        return served_exports.add(db, settings)


def opened(client: TestClient, path: str = "/endpoints") -> Node:
    return parse_page(client.get(path).raise_for_status().text)


def row(engine: Engine, endpoint_id: int = 1) -> Endpoint:
    with read_session(engine) as db:
        return endpoints.get(db, endpoint_id)


def test_empty_page_says_what_endpoints_are_for(client: TestClient) -> None:
    text = opened(client).one("main").text

    assert "No endpoints yet" in text
    assert "for programs that speak OpenAI's API" in text


def test_form_offers_engines_and_says_what_the_others_need(
    client: TestClient, source: Source
) -> None:
    page = opened(client, f"/endpoints/new?from={sources.to_text(source)}")

    inputs = {one.attributes["value"]: one for one in page.all("input", type="radio")}
    assert "checked" in inputs["llama.cpp"].attributes
    assert "disabled" in inputs["studio"].attributes
    assert "It serves models in safetensors, and adapters; this is a GGUF file." in page.text


def test_missing_program_is_told_in_the_form(
    client: TestClient, source: Source, program: Path
) -> None:
    program.unlink()
    page = opened(client, f"/endpoints/new?from={sources.to_text(source)}")

    assert "llama.cpp was not found: there is no program llama-server." in page.text
    assert not [one for one in page.all("input", type="radio") if "checked" in one.attributes]


def test_posted_form_creates_endpoint(client: TestClient, engine: Engine, source: Source) -> None:
    form = {
        "source": sources.to_text(source),
        "name": "pets",
        "engine": "llama.cpp",
        "idle_minutes": "",
    }
    answer = client.post("/endpoints/new", data=form, follow_redirects=False)

    assert (answer.status_code, answer.headers["location"]) == (303, "/endpoints")
    made = row(engine)
    assert (made.name, made.engine, made.export_id) == ("pets", "llama.cpp", source.export_id)
    assert (made.idle_minutes, made.state) == (None, EndpointState.STARTING)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "a b", "A name has up to 64 letters"),
        ("name", "starter", "A model named starter already exists."),
        ("idle_minutes", "soon", "Enter whole minutes from 1 to 10,080."),
        ("idle_minutes", "0", "Enter whole minutes from 1 to 10,080."),
        ("engine", "abacus", "Choose an engine."),
        ("engine", "vllm", "vLLM cannot serve it. It serves models in safetensors"),
    ],
)
def test_refused_form_keeps_what_was_typed(
    client: TestClient, source: Source, field: str, value: str, message: str
) -> None:
    form = {"source": sources.to_text(source), "name": "pets", "engine": "llama.cpp"}
    answer = client.post("/endpoints/new", data=form | {"idle_minutes": "5", field: value})

    page = parse_page(answer.text)
    assert answer.status_code == 422
    assert message in page.one(id=f"{field}-problem").text
    if field != "engine":
        assert page.one(id=field).attributes["value"] == value


def test_page_shows_state_and_actions(
    client: TestClient, engine: Engine, settings: Settings, source: Source
) -> None:
    with unit_of_work(engine) as db:
        made = endpoints.create(db, settings, "pets", source, "llama.cpp")
        for _ in range(lifecycle.MAX_CRASHES):
            lifecycle.record_crash(made, "llama.cpp ended with code 3.", "Its log ends with: no.")

    page = opened(client)
    line = page.one("tr", **{"data-endpoint": "pets"})
    assert line.attributes["data-state"] == "failing"
    assert "llama.cpp ended with code 3." in line.text
    assert page.one(id="address").text == "http://testserver/v1"
    assert (
        opened(client, "/endpoints/list").one("tr", **{"data-endpoint": "pets"}).text == line.text
    )
    client.post("/endpoints/1/start").raise_for_status()
    assert row(engine).state is EndpointState.STARTING
    client.post("/endpoints/1/stop").raise_for_status()
    assert row(engine).state is EndpointState.STOPPED
    client.post("/endpoints/1/delete").raise_for_status()
    assert "No endpoints yet" in opened(client).text


def test_run_and_export_lead_to_the_form(client: TestClient, source: Source) -> None:
    links = {one.attributes.get("href") for one in opened(client, "/runs/1").all("a")}
    files = {one.attributes.get("href") for one in opened(client, "/runs/1/files").all("a")}

    assert "/endpoints/new?from=run:1" in links
    assert f"/endpoints/new?from=run:1/export:{source.export_id}" in files


@pytest.mark.usefixtures("source")
def test_form_without_a_run_lists_those_that_can_be_served(client: TestClient) -> None:
    page = opened(client, "/endpoints/new")

    links = {one.attributes.get("href") for one in page.one("main").all("a")}
    assert {"/runs/1", "/endpoints/new?from=run:1"} <= links


def test_form_says_that_there_is_nothing_to_serve(client: TestClient) -> None:
    assert "Nothing to serve yet" in opened(client, "/endpoints/new").text


def test_log_is_shown(
    client: TestClient, engine: Engine, settings: Settings, source: Source
) -> None:
    with unit_of_work(engine) as db:
        made = endpoints.create(db, settings, "pets", source, "llama.cpp")
        log = endpoints.log_file(settings.endpoint_logs, made)
    log.parent.mkdir(parents=True)
    log.write_text("loading <model>\n", encoding="utf-8")

    assert "loading <model>" in opened(client, "/endpoints/1/log").text
    assert client.get("/api/v1/endpoints/1/log").text == "loading <model>"


def test_api_creates_changes_and_deletes(client: TestClient, source: Source) -> None:
    sent = {"name": "pets", "run_id": source.run_id, "export_id": source.export_id}
    made = client.post("/api/v1/endpoints", json=sent)
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/endpoints/1")
    shown = made.json()
    assert (shown["engine"], shown["state"], shown["idle_minutes"]) == ("llama.cpp", "starting", 30)
    assert not {"locked_key", "pid", "port"} & shown.keys()

    changed = client.patch("/api/v1/endpoints/1", json={"idle_minutes": None})
    assert changed.json()["idle_minutes"] is None
    assert client.post("/api/v1/endpoints/1/stop").json()["state"] == "stopped"
    assert client.post("/api/v1/endpoints/1/start").json()["state"] == "starting"
    again = client.post("/api/v1/endpoints", json=sent)
    assert (again.status_code, again.json()["error"]["param"]) == (409, "name")
    refused = client.delete(f"/api/v1/runs/{source.run_id}")
    assert refused.json()["error"]["message"] == "Run 1 is served by the endpoint pets."
    assert client.delete("/api/v1/endpoints/1").status_code == 204
    assert client.get("/api/v1/endpoints").json()["data"] == []


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("path", "status"),
    [("experiment:1", 422), ("run:99", 404), ("run:1@7", 200), ("run:1/export:9", 200)],
)
def test_form_needs_a_run_and_offers_what_there_is(
    client: TestClient, path: str, status: int
) -> None:
    answer = client.get("/endpoints/new", params={"from": path})

    assert answer.status_code == status
    shown = parse_page(answer.text).one("main").text
    assert ("run 1" in shown) is (status == 200)
