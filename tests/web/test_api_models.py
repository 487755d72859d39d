"""Models by REST: what cannot be one is refused in words."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from studio.settings import Settings


def added(client: TestClient, location: str) -> tuple[int, str]:
    told = {"name": "mine", "kind": "folder", "location": location}
    answer = client.post("/api/v1/models", json=told)
    error = answer.json().get("error", {})
    return answer.status_code, error.get("message", "")


@pytest.mark.parametrize("part", ["a" * 300, "ä" * 200])
def test_a_path_too_long_for_the_system_is_told(client: TestClient, part: str) -> None:
    status, said = added(client, f"/{part}")

    assert (status, said.endswith("cannot be read: File name too long.")) == (422, True)


def test_a_folder_begins_at_the_root(client: TestClient) -> None:
    assert added(client, "models/starter") == (422, "models/starter does not start with /.")


def test_a_folder_without_a_model_is_told(client: TestClient, tmp_path: Path) -> None:
    assert added(client, str(tmp_path)) == (422, f"{tmp_path} holds no model.")


def test_a_model_of_the_home_is_told_with_its_whole_path(
    client: TestClient, settings: Settings
) -> None:
    (starter,) = client.get("/api/v1/models").json()["data"]

    assert starter["location"] == str(settings.models / "starter")


def test_a_home_of_nobody_is_no_model(client: TestClient) -> None:
    recipe = {"base_model": "~nobody-here/model", "dataset": "starter"}
    answer = client.post("/api/v1/runs", json={"name": "x", "recipe": recipe})

    assert answer.status_code == 422
