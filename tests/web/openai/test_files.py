"""Files and models of OpenAI's interface, and what is refused before a model is asked."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.settings import Settings
from tests.support import factories
from tests.web.openai.test_jobs import ROWS, ask, bring, error

pytestmark = pytest.mark.smoke

ASKED: dict[str, Any] = {
    "model": "starter",
    "messages": [{"role": "user", "content": "What is two plus two?"}],
}


def test_file_is_stored_as_dataset_and_returned_unchanged(client: TestClient) -> None:
    told = bring(client)

    assert (told["object"], told["purpose"], told["status"]) == ("file", "fine-tune", "processed")
    assert (told["bytes"], told["filename"]) == (len(ROWS), "tone.jsonl")
    assert client.get(f"/v1/files/{told['id']}").json() == told
    assert client.get(f"/v1/files/{told['id']}/content").content == ROWS


def test_files_with_same_name_are_both_stored(client: TestClient) -> None:
    first, second = bring(client), bring(client)

    assert first["id"] != second["id"]


def test_retried_upload_is_stored_once(client: TestClient) -> None:
    first = bring(client)

    assert bring(client, headers={"x-stainless-retry-count": "1"})["id"] == first["id"]


def test_unusable_file_reports_failing_rows(client: TestClient) -> None:
    told = bring(client, b'{"messages": [{"role": "robot", "content": "Hi"}]}\n')

    assert told["status"] == "error"
    assert told["status_details"] == client.get(f"/v1/files/{told['id']}").json()["status_details"]
    assert "Line 1: A turn has a role other than system" in told["status_details"]
    assert error(ask(client, training_file=told["id"]))[1] == "invalid_training_file"


def test_excluded_rows_are_reported(client: TestClient) -> None:
    told = bring(client, ROWS + b'{"messages": []}\n')

    assert told["status"] == "processed"
    assert "No turns found: expected a list" in told["status_details"]
    assert "(row 41)" in told["status_details"]


def test_reinforcement_file_is_read_as_tasks(client: TestClient) -> None:
    """OpenAI's lines: turns that end with the user's, and whatever graders read."""
    rows = [
        {
            "messages": [
                {"role": "developer", "content": "Answer with a number."},
                {"role": "user", "content": f"What is {n} plus {n}?"},
            ],
            "question": f"{n} + {n}",
            "answer": str(2 * n),
            "near": [2 * n - 0.5, 2 * n + 0.5],
            "messages_before": None,
        }
        for n in range(30)
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    told = bring(client, content)
    number = told["id"].removeprefix("file-")
    row = client.get(f"/api/v1/datasets/{number}/rows?limit=4").json()["data"][3]

    assert (told["status"], told["status_details"]) == ("processed", None)
    assert client.get(f"/api/v1/datasets/{number}").json()["kind"] == "task"
    assert [turn["role"] for turn in row["messages"]] == ["system", "user"]
    assert row["item"] == {name: value for name, value in rows[3].items() if name != "messages"}
    assert client.get(f"/v1/files/{told['id']}/content").content == content
    refused = ask(client, training_file=told["id"]).json()["error"]
    assert "cannot train on tasks without answers" in refused["message"]


@pytest.mark.parametrize(
    ("sent", "param"),
    [({"purpose": "batch"}, "purpose"), ({}, "purpose")],
    ids=["another purpose", "none"],
)
def test_file_purpose_must_be_fine_tune(
    client: TestClient, sent: dict[str, str], param: str
) -> None:
    answer = client.post("/v1/files", files={"file": ("a.jsonl", ROWS)}, data=sent)

    assert error(answer) == (400, "invalid", param)


def test_files_are_paginated(client: TestClient) -> None:
    ids = [bring(client)["id"] for _ in range(2)]

    first = client.get("/v1/files", params={"limit": 2}).json()
    rest = client.get("/v1/files", params={"after": first["last_id"]}).json()

    assert [one["id"] for one in first["data"]] == ids[::-1]
    assert (first["has_more"], [one["id"] for one in rest["data"]]) == (True, ["file-1"])


def test_file_can_be_deleted(client: TestClient) -> None:
    told = bring(client)

    gone = client.delete(f"/v1/files/{told['id']}").json()

    assert gone == {"id": told["id"], "object": "file", "deleted": True}
    assert error(client.get(f"/v1/files/{told['id']}")) == (404, "not_found", "id")


def test_run_metrics_are_available_as_results_file(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)

    table = client.get("/v1/files/file-results-1/content").text.splitlines()
    (told,) = client.get("/v1/files", params={"purpose": "fine-tune-results"}).json()["data"]

    assert table[:2] == [
        "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy",
        "1,2.9,,,",
    ]
    assert (told["id"], told["bytes"]) == ("file-results-1", len("\n".join(table)) + 1)


def test_fine_tuned_model_can_be_listed_fetched_and_deleted(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)
    name = "ft:starter:local::1"

    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == [name, "starter"]
    assert client.get(f"/v1/models/{name}").json()["owned_by"] == "local"
    assert client.delete(f"/v1/models/{name}").json()["deleted"] is True
    assert error(client.get(f"/v1/models/{name}")) == (404, "model_not_found", "model")


def test_only_kept_checkpoint_is_found(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)
    kept = settings.runs / "1" / "checkpoints" / "checkpoint-5"
    kept.mkdir(parents=True)
    model = "ft:starter:local::1"
    gone = client.get(f"/v1/models/{model}:ckpt-step-3")

    assert client.get(f"/v1/models/{model}:ckpt-step-5").json()["id"] == f"{model}:ckpt-step-5"
    assert error(gone) == (404, "model_not_found", "model")
    assert gone.json()["error"]["message"].endswith(
        f"The checkpoint of step 3 was not kept. Use {model}, or a step that was kept: 5."
    )


def test_checkpoint_is_unavailable_until_run_succeeds(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_running(db)

    answer = client.get("/v1/models/ft:starter:local::1:ckpt-step-5")

    assert error(answer) == (404, "model_not_found", "model")
    assert "Its run has not succeeded" in answer.json()["error"]["message"]


def test_deleting_checkpoint_does_not_trash_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)
    model = "ft:starter:local::1"

    assert error(client.delete(f"/v1/models/{model}:ckpt-step-5"))[:2] == (409, "conflict")
    assert client.get(f"/v1/models/{model}").status_code == 200


def test_job_cannot_start_from_checkpoint(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)
    wish = {"model": "ft:starter:local::1:ckpt-step-5", "training_file": "file-1"}

    assert error(client.post("/v1/fine_tuning/jobs", json=wish)) == (400, "invalid", "model")


def test_job_can_continue_a_fine_tuned_model(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db, adapter={"kind": "lora", "r": 4})
    client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("a.jsonl", ROWS)})
    wish = {"model": "ft:starter:local::1", "training_file": "file-1"}
    recipe = client.post("/v1/fine_tuning/jobs", json=wish).json()["x_studio"]["recipe"]

    assert (recipe["base_model"], recipe["adapter"]["r"]) == ("starter", 4)
    assert recipe["adapter"]["continue_from"] == "run-1"


def test_base_model_cannot_be_deleted(client: TestClient) -> None:
    assert error(client.delete("/v1/models/starter"))[:2] == (409, "conflict")


@pytest.mark.parametrize(
    ("extra", "refusal"),
    [
        ({"model": "gpt-4o"}, (404, "model_not_found", "model")),
        ({"model": "ft:starter:local::9"}, (404, "model_not_found", "model")),
        ({"best_of": 2}, (400, "unsupported_parameter", "best_of")),
        ({"logit_bias": {"5": 1}}, (400, "unsupported_parameter", "logit_bias")),
        ({"tools": [{"type": "function"}]}, (400, "invalid", "tools.0.function")),
        ({"tool_choice": "required"}, (400, "invalid", "tool_choice")),
        ({"response_format": {"type": "grammar"}}, (400, "invalid", "response_format.type")),
        (
            {"response_format": {"type": "json_schema"}},
            (400, "invalid", "response_format.json_schema"),
        ),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "a"}}},
            (400, "invalid", "response_format.json_schema"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "scheme": 1}}},
            (400, "unknown_parameter", "scheme"),
        ),
        ({"tempreature": 1}, (400, "unknown_parameter", "tempreature")),
        ({"temperature": 3}, (400, "invalid", "temperature")),
        ({"messages": []}, (400, "invalid", "messages")),
        ({"messages": [{"role": "function", "content": "4"}]}, (400, "invalid", "messages.0.role")),
        (
            {"messages": [{"role": "tool", "content": "4"}]},
            (400, "invalid", "messages.0.tool_call_id"),
        ),
        (
            {"messages": [{"role": "tool", "content": "4", "tool_call_id": "a"}]},
            (400, "invalid", "messages.0.tool_call_id"),
        ),
        ({"messages": [{"role": "user"}]}, (400, "invalid", "messages.0.content")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_unsupported_chat_requests_are_rejected(
    client: TestClient, extra: dict[str, Any], refusal: tuple[int, str, str]
) -> None:
    assert error(client.post("/v1/chat/completions", json=ASKED | extra)) == refusal


def test_chat_without_worker_returns_503(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json=ASKED | {"user": "me", "n": 1, "store": True})

    assert error(answer)[:2] == (503, "unavailable")
    assert answer.headers["retry-after"] == "5"


def test_invalid_json_returns_openai_error(client: TestClient) -> None:
    assert error(client.post("/v1/chat/completions", content=b"{"))[0] == 400


def test_foreign_host_is_rejected_with_openai_error(client: TestClient) -> None:
    assert error(client.get("/v1/models", headers={"host": "evil.example"}))[0] == 421


def test_rows_with_message_weights_are_accepted(client: TestClient) -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "No.", "weight": 0},
        {"role": "user", "content": "Again?"},
        {"role": "assistant", "content": "Yes.", "weight": 1},
    ]

    told = bring(client, (json.dumps({"messages": turns}) + "\n").encode() * 12)

    assert told["status"] == "processed"
