"""Models by REST: what cannot be one is refused in words."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.settings import Settings
from studio.web.app import create_app
from tests.fakes.hub_server import HubServer


def added(client: TestClient, location: str) -> tuple[int, str]:
    told = {"name": "mine", "source": {"kind": "folder", "path": location}}
    answer = client.post("/api/v1/models", json=told)
    error = answer.json().get("error", {})
    return answer.status_code, error.get("message", "")


@pytest.mark.parametrize("part", ["a" * 300, "ä" * 200])
def test_too_long_path_is_rejected(client: TestClient, part: str) -> None:
    status, said = added(client, f"/{part}")

    assert (status, said.endswith("cannot be read: File name too long.")) == (422, True)


def test_relative_model_path_is_rejected(client: TestClient) -> None:
    assert added(client, "models/starter") == (
        422,
        "models/starter is not an absolute path: start it with /.",
    )


def test_folder_without_model_is_rejected(client: TestClient, tmp_path: Path) -> None:
    assert added(client, str(tmp_path)) == (422, f"{tmp_path} does not contain a model.")


def test_model_in_studio_home_has_absolute_path(client: TestClient, settings: Settings) -> None:
    (starter,) = client.get("/api/v1/models").json()["data"]

    assert starter["location"] == str(settings.models / "starter")


def test_unknown_user_home_path_is_rejected(client: TestClient) -> None:
    recipe = {"base_model": "~nobody-here/model", "dataset": "starter"}
    answer = client.post("/api/v1/runs", json={"name": "x", "recipe": recipe})

    assert answer.status_code == 422


def test_search_results_include_refusal_reason(
    engine: Engine, settings: Settings, hub: HubServer
) -> None:
    whole = {"config.json": b"{}", "model.safetensors": b"x"}
    sizes = {"parameters": {"BF16": 1000}, "total": 1000}
    tags = ["text-generation", "license:mit"]
    hub.model("tiny/good", whole, downloads=7, likes=3, safetensors=sizes, tags=tags)
    hub.model("tiny/bad", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    client = TestClient(create_app(engine, settings.model_copy(update={"hub_endpoint": hub.url})))
    good, bad = client.get("/api/v1/models/search", params={"q": "tiny"}).json()["data"]

    assert good == {
        "id": "tiny/good",
        "downloads": 7,
        "likes": 3,
        "licence": "mit",
        "gated": False,
        "parameters": 1000,
        "bytes": 2000,
        "has_safetensors": True,
        "refusal": "",
        "hint": "",
        "model_id": None,
    }
    assert (bad["has_safetensors"], "pickled" in bad["refusal"]) == (False, True)


def test_unreachable_hub_returns_503(engine: Engine, settings: Settings) -> None:
    nowhere = settings.model_copy(update={"hub_endpoint": "http://127.0.0.1:9"})
    client = TestClient(create_app(engine, nowhere))
    for answer in (
        client.get("/api/v1/models/search", params={"q": "tiny"}),
        client.post("/api/v1/models", json={"source": {"kind": "hub", "id": "tiny/one"}}),
    ):
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            503,
            "127.0.0.1 cannot be reached from here.",
        )


@pytest.mark.parametrize("revision", ["../../x", "main?x=1", "a b"])
def test_invalid_revision_is_rejected(client: TestClient, revision: str) -> None:
    source = {"kind": "hub", "id": "tiny/one", "revision": revision}
    answer = client.post("/api/v1/models", json={"source": source})

    assert (answer.status_code, answer.json()["error"]["message"]) == (
        422,
        "This is not a valid revision.",
    )


def test_hub_endpoint_cannot_be_set_by_request(client: TestClient) -> None:
    source = {"kind": "hub", "id": "tiny/one", "endpoint": "http://169.254.169.254"}

    assert client.post("/api/v1/models", json={"source": source}).status_code == 422


def test_hub_token_is_never_shown(engine: Engine, settings: Settings) -> None:
    told = settings.model_copy(update={"hub_token": SecretStr("hf_secret")})
    page = TestClient(create_app(engine, told)).get("/settings").text

    assert ("a token is set" in page, "hf_secret" in page) == (True, False)
