"""The pages of models: those that are here, and those of the hub."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Model
from studio.protocols.events import Failed
from studio.services.models import downloads, models
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.web.app import create_app
from tests.fakes.hub_server import HubServer
from tests.support.factories import make_finished_run, make_run
from tests.support.page_reader import parse_page
from tests.unit.weights import safetensors_folders

pytestmark = pytest.mark.smoke

PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
OWN = {"AutoModelForCausalLM": "own.Own"}


@pytest.fixture
def online(engine: Engine, settings: Settings, hub: HubServer) -> TestClient:
    return TestClient(create_app(engine, settings.model_copy(update={"hub_endpoint": hub.url})))


@pytest.fixture
def offline(engine: Engine, settings: Settings) -> TestClient:
    nowhere = settings.model_copy(update={"hub_endpoint": "http://127.0.0.1:9"})
    return TestClient(create_app(engine, nowhere))


def folder(tmp_path: Path, **config: Any) -> Path:  # noqa: ANN401 -- whatever a config holds
    return safetensors_folders.write(tmp_path / "mine", {"a": ("F32", [1.0, 2.0])}, **config)


def bring(client: TestClient, path: Path) -> int:
    answer = client.post("/models/folder", data={"folder": str(path)}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return int(answer.headers["location"].rpartition("/")[2])


def test_local_models_are_listed_with_details(client: TestClient, tmp_path: Path) -> None:
    (folder(tmp_path, max_position_embeddings=4096) / "README.md").write_text(
        "---\nlicense: mit\n---\n"
    )
    bring(client, tmp_path / "mine")
    page = client.get("/models").text

    assert ["mine" in page, "4,096" in page, "float32" in page, "mit" in page] == [True] * 4


def test_model_page_shows_warnings(client: TestClient, tmp_path: Path) -> None:
    number = bring(client, folder(tmp_path, model_type="gemma3", dtype="bfloat16"))
    page = client.get(f"/models/{number}").text

    assert "It does not train in float16" in page
    assert "Its config says bfloat16, but its weights are float32" in page
    assert "It has no chat template" in page


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "does not contain a model."),
        ({"config.json": "{}"}, "has a config but no weights."),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "its weights are pickled"),
        ({"config.json": "[" * 9000}, "config.json is not valid JSON."),
        ({"config.json": "{}", "tokenizer_config.json": "7"}, "is too large or not a JSON object."),
    ],
)
def test_unusable_folder_shows_error_in_place(
    client: TestClient, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps({"a": 1}) if content == "{}" else content)
    answer = client.post("/models/folder", data={"folder": str(tmp_path)}, headers=PARTIAL)

    assert (answer.status_code, said in answer.text) == (422, True)


def test_search_shows_usable_models_and_why_others_are_not(
    online: TestClient, hub: HubServer
) -> None:
    weights = {"parameters": {"BF16": 134_515_008}, "total": 134_515_008}
    whole = {"config.json": b"{}", "model.safetensors": b"x"}
    hub.model("tiny/good", whole, safetensors=weights, downloads=1_234_567, gated="auto")
    hub.model("tiny/pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    hub.model("other/thing", whole)
    page = online.get("/models", params={"q": "tiny"}, headers=PARTIAL).text

    assert ["tiny/good" in page, "gated" in page, "135\u00a0M" in page, "269 MB" in page] == [
        True
    ] * 4
    assert "tiny/pickled has no safetensors: its weights are pickled" in page
    assert "other/thing" not in page
    assert page.count('action="/models/download"') == 1


def test_search_finds_models_of_every_kind(online: TestClient, hub: HubServer) -> None:
    whole = {"config.json": b"{}", "model.safetensors": b"x"}
    hub.model("tiny/t5", whole, tags=["text2text-generation", "translation"], downloads=20)
    hub.model("tiny/both", whole, tags=["text-generation", "text2text-generation"], downloads=30)
    hub.model("tiny/llama", whole, downloads=10)
    hub.model("tiny/bert", whole, tags=["fill-mask"], downloads=5)
    hub.model("tiny/llava", whole, tags=["image-text-to-text"], downloads=4)
    hub.model("tiny/minilm", whole, tags=["sentence-similarity"], downloads=3)
    hub.model("tiny/ranker", whole, tags=["text-ranking"], downloads=2)
    hub.model("tiny/painter", whole, tags=["text-to-image"])
    page = online.get("/models", params={"q": "tiny"}, headers=PARTIAL).text

    assert "tiny/painter" not in page
    names = ("both", "t5", "llama", "bert", "llava", "minilm", "ranker")
    assert page.count('action="/models/download"') == len(names)
    places = [page.index(f"tiny/{name}") for name in names]
    assert places == sorted(places)


def test_unreachable_hub_is_reported_on_models_page(offline: TestClient) -> None:
    answer = offline.get("/models", params={"q": "tiny"})

    assert answer.status_code == 200
    assert "127.0.0.1 cannot be reached from here." in answer.text
    assert "On this machine" in answer.text


def test_too_short_search_does_not_query_hub(online: TestClient, hub: HubServer) -> None:
    assert "Enter at least two letters." in online.get("/models", params={"q": "t"}).text
    assert hub.asked == []


def test_download_is_queued_at_current_commit(
    online: TestClient, hub: HubServer, engine: Engine
) -> None:
    repo = hub.model("tiny/one", {"config.json": b"{}", "model.safetensors": b"x"})
    answer = online.post("/models/download", data={"repo": "tiny/one"}, follow_redirects=False)
    with read_session(engine) as db:
        (chore,) = downloads.list_downloads(db)

    assert (answer.status_code, answer.headers["location"]) == (303, "/models")
    assert chore.params == {
        "repo": "tiny/one",
        "commit": repo.commit("main"),
        "name": "tiny/one",
        "code": False,
    }
    assert "Downloading a model" in online.get("/models").text


def test_failed_download_is_requeued_as_same_task(
    online: TestClient, hub: HubServer, engine: Engine
) -> None:
    hub.model("tiny/one", {"config.json": b"{}", "model.safetensors": b"x"})
    wish = {"source": {"kind": "hub", "id": "tiny/one"}}
    first = online.post("/api/v1/models", json=wish)
    with unit_of_work(engine) as db:
        tasks.fail_work(tasks.get(db, first.json()["id"]), Failed(code="x", message="y", hint="z"))
    again = online.post("/api/v1/models", json=wish)

    assert (first.status_code, again.status_code) == (202, 202)
    assert (again.json()["id"], again.json()["status"]) == (first.json()["id"], "queued")


@pytest.mark.parametrize(
    ("repo", "said"),
    [
        ("nobody/nothing", "has no nobody/nothing, or this studio has no access to it."),
        ("nonsense", "nonsense does not have the form owner/name."),
        ("tiny/pickled", "tiny/pickled has no safetensors"),
        ("tiny/gated", "tiny/gated is gated"),
    ],
)
def test_impossible_download_is_rejected_before_queueing(
    online: TestClient, hub: HubServer, engine: Engine, repo: str, said: str
) -> None:
    hub.model("tiny/pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    hub.model("tiny/gated", {"config.json": b"{}", "model.safetensors": b"x"}).gated = "auto"
    answer = online.post("/models/download", data={"repo": repo})
    with read_session(engine) as db:
        waiting = downloads.list_downloads(db)

    assert (answer.status_code, said in answer.text, waiting) == (422, True, [])


def test_custom_code_needs_consent_for_each_revision(client: TestClient, tmp_path: Path) -> None:
    path = folder(tmp_path, auto_map=OWN)
    (path / "own.py").write_text("print('mine')")
    number = bring(client, path)
    assert "no run can start from this model" in client.get(f"/models/{number}").text
    started = {"name": "x", "recipe": {"base_model": "mine", "dataset": "starter"}}
    refused = client.post("/api/v1/runs", json=started)
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        422,
        "mine needs to run custom code (own.Own) that has not been allowed.",
    )

    revision = client.get(f"/api/v1/models/{number}").json()["code"]["revision"]
    client.post(f"/models/{number}/consent", data={"revision": revision})
    assert "Allowed by the local user" in client.get(f"/models/{number}").text
    assert client.post("/api/v1/runs", json=started).status_code == 201

    (path / "own.py").write_text("print('other')")
    changed = client.post("/api/v1/runs", json=started)
    assert "has changed since it was allowed." in changed.json()["error"]["message"]


def test_consent_to_another_revision_is_rejected(client: TestClient, tmp_path: Path) -> None:
    path = folder(tmp_path, auto_map=OWN)
    (path / "own.py").write_text("1")
    number = bring(client, path)
    answer = client.post(f"/api/v1/models/{number}/consent", json={"revision": "f" * 64})

    assert (answer.status_code, answer.json()["error"]["message"]) == (
        409,
        "mine is not at that revision.",
    )


def test_consent_can_be_revoked(client: TestClient, tmp_path: Path) -> None:
    path = folder(tmp_path, auto_map=OWN)
    (path / "own.py").write_text("1")
    number = bring(client, path)
    told = client.get(f"/api/v1/models/{number}").json()["code"]
    client.post(f"/api/v1/models/{number}/consent", json={"revision": told["revision"]})
    client.post(f"/models/{number}/consent/revoke")
    after = client.get(f"/api/v1/models/{number}").json()["code"]

    assert (after["consent"], (path / "own.py").exists()) == (None, True)


def test_custom_code_from_another_repository_cannot_be_allowed(
    client: TestClient, tmp_path: Path
) -> None:
    number = bring(client, folder(tmp_path, auto_map={"AutoConfig": "evil/x--own.Own"}))
    told = client.get(f"/api/v1/models/{number}").json()["code"]
    answer = client.post(f"/api/v1/models/{number}/consent", json={"revision": told["revision"]})

    assert (answer.status_code, "from another repository" in answer.text) == (422, True)


def test_removing_folder_model_keeps_files(client: TestClient, tmp_path: Path) -> None:
    number = bring(client, folder(tmp_path))
    client.post(f"/models/{number}/remove")

    assert client.get(f"/models/{number}").status_code == 404
    assert (tmp_path / "mine" / "model.safetensors").exists()


def test_removing_downloaded_model_deletes_files(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    path = safetensors_folders.write(settings.models / "tiny--one-0123", {"a": ("F32", [1.0])})
    with unit_of_work(engine) as db:
        model = models.add(db, "tiny/one", str(path), kind="hub")
        model.repo, model.revision = "tiny/one", "0" * 40
        number = model.id
    client.post(f"/models/{number}/remove")

    assert list(settings.models.glob("*tiny*")) == []


def test_model_needed_by_waiting_run_cannot_be_removed(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    number = bring(client, folder(tmp_path))
    with unit_of_work(engine) as db:
        make_run(db, base_model="mine")
    answer = client.post(f"/models/{number}/remove")

    assert (answer.status_code, "Run 1 needs mine and has not ended." in answer.text) == (409, True)


def test_fine_tuned_model_page_shows_lineage(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db, "the first", adapter={"kind": "full"})
        models.add_from_run(db, run, folder(tmp_path))
        second = make_finished_run(db, "the second", base_model=f"run-{run.id}")
        model = models.find_by_name(db, f"run-{run.id}")
        assert model is not None
        number, used = model.id, [one.id for one in models.list_runs(db, model)]
    page = client.get(f"/models/{number}").text

    assert "the first" in page.partition("Lineage")[2]
    assert (used, "the second" in page) == ([second.id], True)


@pytest.mark.parametrize(
    ("method", "offer", "link"),
    [("sft", "Chat", "/runs/1/chat"), ("classify", "Try it", "/runs/1#try-title")],
)
def test_trained_model_leads_to_what_it_is_used_for(
    method: str, offer: str, link: str, client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db, method=method, adapter={"kind": "full"})
        models.add_from_run(db, run, folder(tmp_path))
        model = models.find_by_name(db, f"run-{run.id}")
        assert model is not None
        number = model.id
    page = parse_page(client.get(f"/models/{number}").text)

    offers = {one.text: one.attributes["href"] for one in page.all("a", class_="btn")}
    assert offers.get(offer) == link
    assert len({"Chat", "Try it"} & offers.keys()) == 1


def test_missing_model_folder_is_reported(client: TestClient, tmp_path: Path) -> None:
    number = bring(client, folder(tmp_path))
    (tmp_path / "mine").rename(tmp_path / "elsewhere")

    assert "The model folder is missing." in client.get(f"/models/{number}").text


def test_hub_model_without_files_can_be_downloaded(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.add(Model(name="old", kind="hub", location="tiny/one"))

    assert "Hugging Face, not downloaded" in client.get("/models").text
    assert 'name="repo" value="tiny/one"' in client.get("/models/2").text


def test_unreadable_model_page_shows_reason(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    (folder(tmp_path) / "model.safetensors").write_bytes(b"cut")
    with unit_of_work(engine) as db:
        models.add(db, "broken", str(tmp_path / "mine"), kind="run")

    assert "broken" in client.get("/models").text
    assert "model.safetensors cannot be used: it is incomplete" in client.get("/models/2").text


def test_model_list_shows_empty_state(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for model in models.newest(db):
            db.delete(model)

    assert "No models yet" in client.get("/models").text


def test_new_experiment_preselects_chosen_model(client: TestClient) -> None:
    assert 'value="tiny/one"' in client.get("/new", params={"model": "tiny/one"}).text
    assert 'href="/models"' in client.get("/new").text.partition("<main")[2]


def test_estimate_accuracy_is_shown_on_model_list_and_page(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    other = bring(client, folder(tmp_path))
    with unit_of_work(engine) as db:
        for name, peak in (("near", 980e6), ("far", 600e6), ("tiny", 1e6)):
            run = make_finished_run(db, name)
            run.estimate = {"memory": {"total": 1000e6}}
            run.resolved = {"peak_memory": "resident"}
            run.metrics = run.metrics | {"peak_memory_bytes": peak}
    pages = [client.get(f"/models{which}").text for which in ("", "/1", f"/{other}")]

    assert ["Median memory error: 34" in page for page in pages] == [True, True, False]
    assert ["memory under 500 MB" in page for page in pages] == [True, True, False]
    assert "Estimate accuracy" not in pages[2]
    assert "Estimate accuracy" not in client.get("/settings").text
