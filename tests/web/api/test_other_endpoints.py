"""The rest of the REST surface, and what holds for all of it."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import FailingStep, Worker
from studio.recipe.precision import PRECISIONS
from studio.services.workers import workers
from tests.support.factories import make_finished_run, make_run, make_running
from tests.unit.weights import safetensors_folders

RECIPE = {"base_model": "starter", "dataset": "starter"}


def experiment(client: TestClient) -> int:
    body = {"name": "e", "recipe": RECIPE, "tags": ["a"], "notes": "why"}
    made: int = client.post("/api/v1/experiments", json=body).json()["id"]
    return made


def test_health_requires_worker(client: TestClient, engine: Engine) -> None:
    missing = client.get("/api/v1/health")
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=os.getpid(), slots=1))
    present = client.get("/api/v1/health")

    assert (missing.status_code, missing.json()["error"]["message"]) == (
        503,
        "No worker is running.",
    )
    assert (present.status_code, present.json()["status"]) == (200, "ok")


def test_health_is_degraded_while_worker_step_fails(client: TestClient, engine: Engine) -> None:
    failing = FailingStep(
        step="follow", subject="run 3", error="PermissionError", since=datetime.now(UTC)
    )
    with unit_of_work(engine) as db:
        worker = Worker(name="w", pid=os.getpid(), slots=1, failing=[failing], failures=7)
        workers.heartbeat(db, worker)
    degraded = client.get("/api/v1/health")
    metrics = client.get("/metrics").text
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=os.getpid(), slots=1))
    recovered = client.get("/api/v1/health")

    assert (degraded.status_code, degraded.json()["status"]) == (200, "degraded")
    assert degraded.json()["reasons"] == [
        "The worker cannot monitor running processes (run 3: PermissionError)"
    ]
    assert "studio_worker_failing_steps 1" in metrics
    assert "studio_worker_step_failures 7" in metrics
    assert (recovered.json()["status"], recovered.json()["reasons"]) == ("ok", [])


def test_hardware_lists_cores_and_device(client: TestClient) -> None:
    hardware = client.get("/api/v1/hardware").json()

    assert hardware["cores"] >= 1
    assert hardware["device"] in {"cpu", "cuda"}


def test_method_includes_its_schema(client: TestClient) -> None:
    method = client.get("/api/v1/methods/sft").json()
    rate = method["recipe_schema"]["$defs"]["AnswerOptimisation"]["properties"]["learning_rate"]

    assert (rate["default"], rate["exclusiveMinimum"]) == (2e-4, 0)
    assert rate["description"].startswith("Step size.")


def test_precisions_list_their_formats(client: TestClient) -> None:
    modes = {mode["name"]: mode for mode in client.get("/api/v1/precisions").json()["data"]}

    assert list(modes) == list(PRECISIONS)
    assert (modes["fp16"]["weights"], modes["fp16"]["compute"], modes["fp16"]["scaler"]) == (
        "float32",
        "float16",
        True,
    )


def test_experiment_can_be_created_changed_and_deleted(client: TestClient) -> None:
    number = experiment(client)
    changed = client.patch(f"/api/v1/experiments/{number}", json={"tags": ["b", "c"]}).json()

    assert (changed["name"], changed["notes"], changed["tags"]) == ("e", "why", ["b", "c"])
    assert client.delete(f"/api/v1/experiments/{number}").status_code == 204
    assert client.get(f"/api/v1/experiments/{number}").status_code == 404


def test_sweep_makes_every_combination(client: TestClient) -> None:
    number = experiment(client)
    sweep = {"precision": ["fp32", "bf16"], "optimisation.seed": [1, 2]}
    made = client.post(f"/api/v1/experiments/{number}/runs", json={"sweep": sweep}).json()["data"]

    assert [(r["recipe"]["precision"], r["recipe"]["optimisation"]["seed"]) for r in made] == [
        ("fp32", 1),
        ("fp32", 2),
        ("bf16", 1),
        ("bf16", 2),
    ]


def test_invalid_sweep_value_creates_no_run(client: TestClient) -> None:
    number = experiment(client)
    sweep = {"precision": ["fp32", "fp64"]}
    answer = client.post(f"/api/v1/experiments/{number}/runs", json={"sweep": sweep})

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "precision")
    assert client.get("/api/v1/runs").json()["data"] == []


def test_models_can_be_added_and_removed(client: TestClient, tmp_path: Path) -> None:
    folder = safetensors_folders.write(tmp_path / "small", {"a": ("F32", [1.0])})
    body = {"source": {"kind": "folder", "path": str(folder)}}
    added = client.post("/api/v1/models", json=body)

    assert (added.status_code, added.json()["name"]) == (201, "small")
    assert added.json()["location"] == str(folder)
    assert client.post("/api/v1/models", json=body).status_code == 409
    assert client.delete(f"/api/v1/models/{added.json()['id']}").status_code == 204


def test_folder_without_model_is_rejected(client: TestClient) -> None:
    body = {"name": "x", "source": {"kind": "folder", "path": "/nowhere"}}
    answer = client.post("/api/v1/models", json=body)

    assert answer.json()["error"]["message"] == "/nowhere does not contain a model."


def test_comparison_lists_differing_settings(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, precision="bf16"), make_finished_run(db, precision="fp32")
    made = client.get("/api/v1/compare", params={"runs": "1,2", "base": 2}).json()

    assert (made["base"], made["differing"]) == (2, {"precision": ["bf16", "fp32"]})
    assert len(made["curves"]["loss"]["1"]["mean"]) == len(made["x"]) == 10


def test_queue_lists_waiting_runs_in_order(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db, "live"), make_run(db, "a"), make_run(db, "b")
        workers.heartbeat(db, Worker(name="w", pid=1, slots=2))
    told = client.get("/api/v1/queue").json()

    assert (told["slots"], told["used"]) == (2, 1)
    assert [(run["name"], run["queue_position"]) for run in told["waiting"]] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("path", ["/api/v1/nope", "/api/v1/runs/x", "/api/v1/compare"])
def test_every_error_has_same_fields(client: TestClient, path: str) -> None:
    error = client.get(path).json()["error"]

    assert {"code", "message", "hint", "param"} <= error.keys()


def test_wrong_method_returns_405_error_object(client: TestClient) -> None:
    answer = client.get("/api/v1/runs/1/cancel")

    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
