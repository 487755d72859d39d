"""The manifest of a run: what one document says of it, whenever it is asked."""

import hashlib
import json
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import Started
from studio.protocols.run_dir import RunDir
from studio.services.datasets import datasets
from studio.services.runs import attempts, run_commands
from studio.settings import Settings
from tests.support.factories import make_run, make_running, metrics_event
from tests.support.page_reader import parse_page


def told(client: TestClient, run_id: int = 1) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}/manifest").json()
    return answer


def test_manifest_of_queued_run_lists_requested_settings(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        make_run(db, precision="fp32", optimisation={"seed": 7})
    found = told(client)

    assert (found["precision"], found["seed"], found["is_finished"]) == (
        {
            "requested": "fp32",
            "chosen_by": "user",
            "reason": "",
            "resolved": {},
            "audited": {},
            "rounded": None,
        },
        7,
        False,
    )
    assert found["dataset"] == {
        "name": "starter",
        "sha256": "0" * 64,
        "version": 1,
        "rows_sha256": "1" * 64,
        "mapping": {"shape": "messages", "roles": {"messages": ["messages"]}},
        "train_rows": 40,
        "validation_rows": 0,
    }


def test_recipe_hash_matches_recipe(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    found = told(client)

    text = json.dumps(found["recipe"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert found["recipe_sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_different_recipes_have_different_hashes(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for seed in (1, 1, 2):
            make_run(db, optimisation={"seed": seed})
    hashes = [told(client, number)["recipe_sha256"] for number in (1, 2, 3)]

    assert (hashes[0] == hashes[1], hashes[0] == hashes[2]) == (True, False)


def test_manifest_of_running_run_lists_measurements(client: TestClient, engine: Engine) -> None:
    resolved = {
        "plan": {"compute": "bfloat16"},
        "audit": {"compute": "bfloat16", "formats": {"Linear": "float32"}},
        "versions": {"torch": "2"},
        "device": "cpu",
        "device_name": "A processor",
    }
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [Started(total_steps=9, resolved=resolved)], 1)
        attempts.apply_events(db, run, [metrics_event(3, loss=float("nan"))], 2)
    found = told(client)

    assert found["precision"]["audited"] == resolved["audit"]
    assert (found["versions"], found["metrics"]) == ({"torch": "2"}, {"loss": "NaN"})
    assert found["hardware"] == {"device": "cpu", "device_name": "A processor"}


def test_manifest_written_by_run_is_returned_unchanged(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    folder = RunDir(settings.runs / "1")
    folder.artifacts.mkdir(parents=True)
    folder.manifest.write_text('{"manifest_version": 1, "name": "as it was"}')

    answer = client.get("/api/v1/runs/1/manifest")

    assert (answer.text, answer.headers["content-type"]) == (
        '{"manifest_version": 1, "name": "as it was"}',
        "application/json",
    )


def test_manifest_of_deleted_dataset_has_no_dataset(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        run_commands.cancel(db, make_run(db).id or 0)
        datasets.delete(db, settings.datasets, 1)

    assert told(client)["dataset"] is None


def test_manifest_of_unknown_run_returns_404(client: TestClient) -> None:
    answer = client.get("/api/v1/runs/9/manifest")

    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Run 9 does not exist.")


def test_run_page_links_to_manifest(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    section = parse_page(client.get("/runs/1/files").text).one(
        "section", **{"aria-labelledby": "files-title"}
    )

    link = next(link for link in section.all("a") if link.text == "Manifest")
    assert client.get(link.attributes["href"]).json()["run"] == 1
