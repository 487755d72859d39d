"""Uploads of exports to the hub, by REST and on a run's page."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Export, Task
from studio.protocols.events import Failed, Finished, PhaseChanged
from studio.protocols.run_dir import RunDir
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.fakes.exporter import MEASURED
from tests.support.factories import make_finished_run
from tests.support.page_reader import Node, parse_page

API = "/api/v1/runs/1/exports/1/pushes"
RESULT: dict[str, Any] = {
    "repo": "me/mine",
    "revision": "0123456789abcdef",
    "url": "https://hub.example/me/mine/tree/0123456789abcdef",
    "bytes": 3,
    "private": True,
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Give the studio a token."""
    return settings.model_copy(update={"hub_token": SecretStr("hf_secret")})


@pytest.fixture(autouse=True)
def export(engine: Engine, settings: Settings) -> None:
    """Make a run with a finished export."""
    with unit_of_work(engine) as db:
        run = make_finished_run(db, "My model 2!")
        made = Export(run_id=run.id or 0, kind="full", dtype="float32", status=TaskStatus.SUCCEEDED)
        made.measured = MEASURED
        db.add(made)
        RunDir(settings.runs / str(run.id)).artifacts.mkdir(parents=True)
        files = RunDir(settings.runs / str(run.id)).export(1).files
    files.mkdir(parents=True)
    (files / "config.json").write_text("{}", encoding="utf-8")


def ask(client: TestClient, **body: Any) -> dict[str, Any]:  # noqa: ANN401 -- any JSON
    answer = client.post(API, json={"repo": "me/mine"} | body)
    told: dict[str, Any] = answer.json()
    return told if answer.is_success else told["error"] | {"status": answer.status_code}


def end(engine: Engine, event: Failed | Finished | PhaseChanged, task_id: int = 1) -> None:
    """Let an upload be as its process has left it."""
    with unit_of_work(engine) as db:
        task = tasks.get(db, task_id)
        if task.status is TaskStatus.QUEUED:
            tasks.start_work(task)
        tasks.apply_work_events(task, [event], 1, "push")
        if isinstance(event, Finished):
            task.result = RESULT


def section(client: TestClient) -> Node:
    return parse_page(client.get("/runs/1/files").text).one(id="exports")


def test_upload_is_queued_as_private(client: TestClient, engine: Engine) -> None:
    told = ask(client)

    assert (told["repo"], told["private"], told["status"]) == ("me/mine", True, "queued")
    assert client.get(API).json()["data"] == [told]
    with read_session(engine) as db:
        assert "hf_secret" not in str(db.get_one(Task, told["task_id"]).model_dump())


def test_second_request_returns_the_same_upload(client: TestClient) -> None:
    assert ask(client)["task_id"] == ask(client)["task_id"]

    other = ask(client, repo="me/other")
    assert (other["status"], other["message"]) == (
        409,
        "Export 1 is being uploaded to me/mine.",
    )


@pytest.mark.parametrize("repo", ["", "mine", "me/", "/mine", "me/a/b", "../x", "me/mi ne", "ü/x"])
def test_repository_needs_owner_and_name(client: TestClient, repo: str) -> None:
    told = ask(client, repo=repo)

    assert (told["status"], told["param"]) == (422, "repo")
    assert "owner/name" in told["message"]


def test_unfinished_export_is_not_uploaded(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.get_one(Export, 1).status = TaskStatus.RUNNING

    assert ask(client)["message"] == "Export 1 is running."
    assert client.post(API.replace("exports/1", "exports/9"), json={"repo": "a/b"}).status_code == (
        404
    )


def test_failed_upload_is_tried_again(client: TestClient, engine: Engine) -> None:
    first = ask(client)
    end(engine, Failed(code="unavailable", message="The connection broke.", hint="Try again."))
    shown = section(client)

    assert "The connection broke." in shown.text
    assert shown.one("form", action=f"/chores/{first['task_id']}/again").text == "Try again"
    assert client.get(API).json()["data"][0]["error"]["message"] == "The connection broke."
    again = ask(client)
    assert (again["task_id"], again["status"]) == (first["task_id"], "queued")


def test_page_shows_progress_and_then_the_commit(client: TestClient, engine: Engine) -> None:
    ask(client)
    end(engine, PhaseChanged(name="uploaded 1.0 MB of 2.0 MB", share=0.5))
    shown = section(client)
    assert "Upload to me/mine: uploaded 1.0 MB of 2.0 MB" in shown.text
    assert [one.attributes["value"] for one in shown.all("progress")] == ["0.5000"]
    assert shown.all("div", **{"hx-trigger": "every 1s"})

    end(engine, Finished(metrics={}))
    shown = section(client)
    assert "Uploaded to me/mine at 01234567" in shown.text
    assert "private" in shown.text
    assert shown.one("a", href=RESULT["url"])
    assert not shown.all("div", **{"hx-trigger": "every 1s"})
    assert client.get(API).json()["data"][0]["revision"] == RESULT["revision"]


def test_manifest_names_the_commit(client: TestClient, engine: Engine) -> None:
    assert client.get("/api/v1/runs/1/manifest").json()["published"] == []

    ask(client)
    end(engine, Finished(metrics={}))
    (published,) = client.get("/api/v1/runs/1/manifest").json()["published"]

    assert published.pop("at").startswith("20")
    assert published == {
        "export": 1,
        "repo": "me/mine",
        "revision": RESULT["revision"],
        "private": True,
    }


@pytest.mark.parametrize(("sent", "private"), [({}, True), ({"public": "true"}, False)])
def test_page_asks_for_an_upload(
    client: TestClient, sent: dict[str, str], *, private: bool
) -> None:
    form = section(client).one("form", action="/runs/1/exports/1/pushes")
    assert form.one("input", name="repo").attributes["value"] == ""

    answer = client.post("/runs/1/exports/1/pushes", data={"repo": " me/mine "} | sent)
    assert answer.status_code == 200
    assert client.get(API).json()["data"][0]["private"] is private
    suggested = section(client).one("input", name="repo").attributes["value"]
    assert suggested == "me/My-model-2"


def test_deleted_export_is_no_longer_uploaded(client: TestClient, engine: Engine) -> None:
    told = ask(client)
    assert client.delete("/api/v1/runs/1/exports/1").status_code == 204

    with read_session(engine) as db:
        assert tasks.get(db, told["task_id"]).status is TaskStatus.CANCELLED


class TestWithoutToken:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"hub_token": SecretStr("")})

    def test_upload_says_where_to_set_one(self, client: TestClient) -> None:
        told = ask(client)
        form = section(client).one("form", action="/runs/1/exports/1/pushes")

        assert (told["status"], told["message"]) == (409, "This studio has no Hugging Face token.")
        assert "This studio has no Hugging Face token." in form.text
        assert form.one("a", href="/settings/secrets")
        assert "disabled" in form.all("button")[-1].attributes
