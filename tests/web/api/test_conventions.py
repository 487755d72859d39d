"""What holds for all calls: made once under a key, changed as it was read, nothing misspelt."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session, col, func, select

from studio.db.accounts import IdempotencyKey
from studio.db.session import unit_of_work
from studio.db.tables import Dataset, Experiment, Run
from studio.errors import ConflictError
from studio.services.accounts import idempotency_keys
from studio.settings import Settings
from tests.support.factories import make_finished_run, make_run

pytestmark = pytest.mark.smoke

RECIPE = {"base_model": "starter", "dataset": "starter"}
KEY = {"Idempotency-Key": "k"}
ROWS = "".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(3))


def count(db: Session, table: Any) -> int:  # noqa: ANN401 -- any table
    return db.exec(select(func.count()).select_from(table)).one()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/experiments", {"name": "e", "recipe": RECIPE}),
        ("/runs", {"name": "r", "recipe": RECIPE}),
        ("/experiments/1/runs", {"overrides": {"precision": "fp32"}}),
        ("/comparisons", {"name": "c", "query": "runs=1"}),
        ("/views", {"name": "v", "query": "q=status:failed"}),
        ("/uploads", {"filename": "a.jsonl", "size": 10}),
        ("/estimate/calibration", {"recipe": RECIPE}),
        ("/runs/1/again", {}),
    ],
)
def test_repeated_request_with_idempotency_key_is_replayed(
    client: TestClient, engine: Engine, path: str, body: dict[str, Any]
) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    first, second = (client.post(f"/api/v1{path}", json=body, headers=KEY) for _ in range(2))
    other = client.post(f"/api/v1{path}", json=body | {"name": "other"}, headers=KEY)

    assert first.status_code in {201, 202}
    assert (second.status_code, second.json()) == (first.status_code, first.json())
    assert second.headers["Idempotent-Replay"] == "true"
    assert "Idempotent-Replay" not in first.headers
    assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")


def test_file_with_same_idempotency_key_is_stored_once(client: TestClient, db: Session) -> None:
    # Each form has a boundary of its own: what counts is what it says.
    first, second = (
        client.post("/api/v1/datasets", files={"file": ("a.jsonl", ROWS)}, headers=KEY)
        for _ in range(2)
    )
    other = client.post("/api/v1/datasets", files={"file": ("a.jsonl", ROWS * 2)}, headers=KEY)

    assert (first.status_code, second.json()) == (201, first.json())
    assert other.status_code == 422
    assert count(db, Dataset) == 2  # with the starter


def test_idempotency_key_can_be_reused_after_failure(client: TestClient) -> None:
    wrong = client.post("/api/v1/runs", json={"name": "r", "recipe": {}}, headers=KEY)
    right = client.post("/api/v1/runs", json={"name": "r", "recipe": RECIPE}, headers=KEY)

    assert (wrong.status_code, right.status_code) == (422, 201)


def test_concurrent_use_of_idempotency_key_rolls_back_one(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.add(IdempotencyKey(key="k", sha256="0", status=201, body=b"{}"))

    def make() -> None:
        with unit_of_work(engine) as db:
            make_run(db)
            idempotency_keys.store_answer(
                db, IdempotencyKey(key="k", sha256="0", status=201, body=b"{}")
            )

    with pytest.raises(ConflictError):
        make()

    with unit_of_work(engine) as db:
        assert (count(db, Run), count(db, Experiment)) == (0, 0)


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_invalid_idempotency_key_is_rejected(client: TestClient, key: str) -> None:
    answer = client.post(
        "/api/v1/runs", json={"name": "r", "recipe": RECIPE}, headers={"Idempotency-Key": key}
    )

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "Idempotency-Key")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/runs/1", "name"),
        ("/experiments/1", "name"),
        ("/datasets/1", "name"),
        ("/comparisons/1", "text"),
    ],
)
def test_stale_etag_is_rejected(client: TestClient, engine: Engine, path: str, name: str) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    client.post("/api/v1/comparisons", json={"name": "c", "query": "runs=1"})
    read = client.get(f"/api/v1{path}").headers["etag"]
    mine = client.patch(f"/api/v1{path}", json={name: "mine"}, headers={"If-Match": read})
    late = client.patch(f"/api/v1{path}", json={name: "late"}, headers={"If-Match": read})
    newest = {"If-Match": f'"other", W/{mine.headers["etag"]}'}

    assert (mine.status_code, late.status_code, late.json()["error"]["code"]) == (200, 412, "stale")
    assert client.get(f"/api/v1{path}").json()[name] == "mine"
    assert client.patch(f"/api/v1{path}", json={name: "new"}, headers=newest).status_code == 200


def test_progress_does_not_change_etag(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        number = make_run(db).id
    before = client.get(f"/api/v1/runs/{number}").headers["etag"]
    with unit_of_work(engine) as db:
        db.exec(select(Run).where(col(Run.id) == number)).one().step = 7

    assert client.get(f"/api/v1/runs/{number}").headers["etag"] == before


def test_misspelt_filter_is_rejected(client: TestClient) -> None:
    answer = client.get("/api/v1/runs", params={"stauts": "failed"})

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "stauts")


@pytest.mark.parametrize("value", ["1e-4", True, "true"])
def test_learning_rate_must_be_number(client: TestClient, value: object) -> None:
    recipe = RECIPE | {"optimisation": {"learning_rate": value}}
    answer = client.post("/api/v1/runs", json={"name": "r", "recipe": recipe})

    assert answer.status_code == 422
    assert "learning_rate" in answer.json()["error"]["param"]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"tag": "good one"}, [2]),
        ({"precision": "bf16"}, [1]),
        ({"model": "starter", "dataset": "starter", "method": "sft"}, [2, 1]),
        ({"status": "succeeded", "search": "second"}, [2]),
        ({"experiment": 1}, [1]),
        ({"precision": "fp16"}, []),
    ],
)
def test_runs_can_be_filtered(
    client: TestClient, engine: Engine, filters: dict[str, Any], found: list[int]
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, precision="bf16")
        make_finished_run(db, "second", precision="fp32").tags = ["good one"]
    told = client.get("/api/v1/runs", params=filters).json()["data"]

    assert [run["id"] for run in told] == found


def test_models_are_paginated_and_found_by_name(client: TestClient) -> None:
    page = client.get("/api/v1/models", params={"limit": 1, "after": 2}).json()

    assert ([one["name"] for one in page["data"]], page["has_more"]) == (["starter"], False)
    assert client.get("/api/v1/models/starter").json()["id"] == 1
    assert client.get("/api/v1/models/1").json()["name"] == "starter"
    assert client.get("/api/v1/models/who/knows").status_code == 404


def test_metrics_can_be_limited_to_step_range(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    asked: dict[str, str | int] = {"keys": "loss", "from": 3, "to": 5}
    told = client.get("/api/v1/runs/1/metrics", params=asked).json()

    assert told["x"] == [3, 4, 5]
    assert told["series"]["loss"]["mean"] == [2.7, 2.6, 2.5]


def test_checkpoints_are_listed_newest_first(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db).checkpoint_step = 8
    folder = settings.runs / "1" / "checkpoints"
    for step in (4, 8):
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        (folder / f"checkpoint-{step}" / "weights").write_bytes(b"x" * step)
    (folder / ".checkpoint-9.partial").mkdir()
    told = client.get("/api/v1/runs/1/checkpoints").json()["data"]

    assert [(one["step"], one["bytes"], one["is_next"]) for one in told] == [
        (8, 8, True),
        (4, 4, False),
    ]


def test_run_can_be_moved_in_queue(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "a"), make_run(db, "b")
    moved = client.post("/api/v1/runs/2/move", json={"place": 1}).json()

    assert (moved["name"], moved["queue_position"]) == ("b", 1)


def test_runs_of_experiment_can_have_priority(client: TestClient) -> None:
    client.post("/api/v1/experiments", json={"name": "e", "recipe": RECIPE})
    made = client.post("/api/v1/experiments/1/runs", json={"priority": 5}).json()["data"]

    assert [run["priority"] for run in made] == [5]


def test_hardware_lists_availability_of_each_precision(client: TestClient) -> None:
    told = client.get("/api/v1/hardware").json()["precisions"]

    assert told["fp32"] == ""
    assert told.keys() >= {"bf16", "fp16", "fp32_tf32"}


@pytest.mark.parametrize(
    ("address", "param", "message"),
    [
        ("/runs?sort=password", "sort", "Runs cannot be sorted by password."),
        ("/runs?sort=-eval_los", "sort", "Runs cannot be sorted by eval_los."),
        ("/runs?sort=loss.curve", "sort", "Runs cannot be sorted by loss.curve."),
        ("/runs?limit=1&limit=2", "limit", "limit: Given more than once; send one value."),
        ("/runs?tag=a&tag=b", "tag", "tag: Given more than once; send one value."),
        ("/compare?runs=1&runs=2", "runs", "runs: Given more than once; send one value."),
        ("/runs?lmit=1", "lmit", "lmit: Unknown field. Did you mean limit?"),
        ("/runs?limit=0", "limit", "limit: Must be between 1 and 500."),
        ("/runs/x", "run_id", "run_id: Must be a whole number, at least 1."),
    ],
)
def test_invalid_query_parameter_gets_clear_error(
    client: TestClient, address: str, param: str, message: str
) -> None:
    answer = client.get(f"/api/v1{address}")
    error = answer.json()["error"]

    assert (answer.status_code, error["param"], error["message"]) == (422, param, message)


@pytest.mark.parametrize(
    ("method", "content", "status", "message"),
    [
        ("POST", b"\xff\xfe{", 400, "Could not read the request body."),
        ("POST", b"[]", 422, "The body: Must be an object with fields."),
        ("POST", b"", 422, "The body: A value is required."),
        ("PUT", b"{}", 405, "/api/v1/runs does not accept PUT requests."),
    ],
)
def test_invalid_body_gets_clear_error(
    client: TestClient, method: str, content: bytes, status: int, message: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.request(method, "/api/v1/runs", content=content, headers=headers)

    assert (answer.status_code, answer.json()["error"]["message"]) == (status, message)


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (
            "/fine_tuning/jobs",
            {"model": "starter", "training_file": "f", "hyperparameters": {"n_epochs": "x"}},
            "hyperparameters.n_epochs",
            "hyperparameters.n_epochs: Must be 'auto' or a whole number between 1 and 50.",
        ),
        (
            "/chat/completions",
            {"model": "starter", "messages": [{"role": "user", "content": 3}]},
            "messages.0.content",
            "messages.0.content: Must be text or a list.",
        ),
        (
            "/completions",
            {"model": "starter", "prompt": 3},
            "prompt",
            "prompt: Must be text or a list.",
        ),
    ],
)
def test_openai_endpoints_return_clear_errors(
    client: TestClient, path: str, body: dict[str, Any], param: str, message: str
) -> None:
    error = client.post(f"/v1{path}", json=body).json()["error"]

    assert (error["param"], error["message"]) == (param, message)
