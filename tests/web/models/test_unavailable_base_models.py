"""A base model that cannot be had keeps a run from starting: on the form and by REST alike."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Model
from studio.services.models import models
from studio.settings import Settings
from studio.web.app import create_app
from tests.fakes.hub_server import HubServer
from tests.support.page_reader import field_error, form_fields, parse_page
from tests.unit.weights import safetensors_folders

HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
FILES = {"config.json": b"{}", "model.safetensors": b"x"}
NOWHERE = "http://127.0.0.1:9"


def client_at(engine: Engine, settings: Settings, url: str) -> TestClient:
    return TestClient(create_app(engine, settings.model_copy(update={"hub_endpoint": url})))


@pytest.fixture
def online(engine: Engine, settings: Settings, hub: HubServer) -> TestClient:
    return client_at(engine, settings, hub.url)


@pytest.fixture
def offline(engine: Engine, settings: Settings) -> TestClient:
    return client_at(engine, settings, NOWHERE)


def planned(client: TestClient, model: str) -> list[dict[str, Any]]:
    recipe = {"base_model": model, "dataset": "starter"}
    refusals: list[dict[str, Any]] = client.post("/api/v1/plan", json={"recipe": recipe}).json()[
        "refusals"
    ]
    return refusals


def submitted(client: TestClient, model: str) -> tuple[int, str]:
    recipe = {"base_model": model, "dataset": "starter", "precision": "fp32"}
    answer = client.post("/api/v1/runs", json={"name": "a", "recipe": recipe})
    return answer.status_code, (answer.json()["error"] or {}).get("message", "")


def test_unreachable_hub_blocks_plan_run_and_form(offline: TestClient) -> None:
    (refusal,) = planned(offline, "owner/name")
    form = dict(form_fields(parse_page(offline.get("/new").text).one(id="form"))) | {
        "base_model": "owner/name"
    }
    advice = offline.post("/new/advice", data=form, headers=HTMX).text
    sent = offline.post("/new", data=form)

    assert refusal["message"] == "127.0.0.1 cannot be reached from here."
    assert "Try again, or choose a model on this machine." in refusal["hint"]
    assert (refusal["param"], refusal["link"]) == ("base_model", "/models")
    assert submitted(offline, "owner/name") == (422, refusal["message"])
    assert [one in advice for one in (refusal["message"], "Fix Base model to start", "Memory")] == [
        True,
        True,
        False,
    ]
    assert sent.status_code == 422
    assert refusal["message"] in field_error(parse_page(sent.text), "base_model")


@pytest.mark.parametrize(
    ("name", "told", "todo"),
    [
        (
            "nobody/nothing",
            "has no nobody/nothing, or this studio has no access to it.",
            "STUDIO_HUB_TOKEN",
        ),
        ("tiny/gated", "tiny/gated is gated: you must accept its terms first.", "Accept"),
        ("tiny/pickled", "tiny/pickled has no safetensors", ""),
    ],
)
def test_unavailable_hub_model_is_rejected_with_reason(
    online: TestClient, hub: HubServer, name: str, told: str, todo: str
) -> None:
    hub.model("tiny/gated", FILES).gated = "auto"
    hub.model("tiny/pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    (refusal,) = planned(online, name)

    assert told in refusal["message"]
    assert todo in refusal["hint"]
    assert submitted(online, name) == (422, refusal["message"])


def test_gated_model_starts_with_valid_token(
    engine: Engine, settings: Settings, hub: HubServer
) -> None:
    hub.model("tiny/gated", FILES).gated = "auto"
    given = settings.model_copy(update={"hub_endpoint": hub.url, "hub_token": hub.token})
    client = TestClient(create_app(engine, Settings.model_validate(given.model_dump())))

    assert submitted(client, "tiny/gated")[0] == 201


def test_hub_model_is_checked_once_and_starts(online: TestClient, hub: HubServer) -> None:
    hub.model("tiny/good", FILES)

    assert [planned(online, "tiny/good") for _ in range(3)] == [[], [], []]
    assert submitted(online, "tiny/good")[0] == 201
    assert len([one for one in hub.asked if one.path.startswith("/api/models/")]) == 1


def test_retry_queries_hub_again(engine: Engine, settings: Settings, hub: HubServer) -> None:
    app = create_app(engine, settings.model_copy(update={"hub_endpoint": hub.url}))
    app.state.hub_answers.refused_seconds = 0.0
    online = TestClient(app)
    assert planned(online, "tiny/late") != []
    hub.model("tiny/late", FILES)

    assert planned(online, "tiny/late") == []


def test_undownloaded_model_is_looked_up_by_hub_name(offline: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.add(Model(name="far", kind="hub", location="org/far"))

    assert planned(offline, "far")[0]["message"] == "127.0.0.1 cannot be reached from here."


def test_missing_or_weightless_folder_is_rejected(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    gone = safetensors_folders.write(tmp_path / "gone", {"a": ("F32", [1.0])})
    bare = safetensors_folders.write(tmp_path / "bare", {})
    with unit_of_work(engine) as db:
        models.add(db, "gone", str(gone), kind="folder")
    shutil.rmtree(gone)

    assert planned(client, "gone")[0]["message"] == f"The folder of gone no longer exists: {gone}."
    assert planned(client, str(bare))[0]["message"] == f"{bare} has a config but no weights."
    assert submitted(client, "gone") == (422, f"The folder of gone no longer exists: {gone}.")
