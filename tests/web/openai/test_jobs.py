"""OpenAI's fine-tuning interface: what a job becomes, how it is told, and what is refused."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.protocols.events import Finished, Started
from studio.services.runs import attempts, run_commands, runs, states
from studio.services.trackers import trackers
from studio.trackers.table import TRACKERS
from tests.support import factories
from tests.unit.weights import safetensors_folders

pytestmark = pytest.mark.smoke

ROWS = "".join(json.dumps(row) + "\n" for row in factories.ROWS).encode()


def bring(
    client: TestClient, content: bytes = ROWS, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    answer = client.post(
        "/v1/files",
        files={"file": ("tone.jsonl", content)},
        data={"purpose": "fine-tune"},
        headers=headers,
    )
    told: dict[str, Any] = answer.json()
    assert answer.status_code == 200, told
    return told


def ask(
    client: TestClient,
    headers: dict[str, str] | None = None,
    **job: Any,  # noqa: ANN401 -- any field of a job
) -> httpx2.Response:
    wish = {"model": "starter", "training_file": "file-1", **job}
    return client.post("/v1/fine_tuning/jobs", json=wish, headers=headers)


def error(answer: httpx2.Response) -> tuple[int, str, str | None]:
    told = answer.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return answer.status_code, told["code"], told["param"]


def test_job_creates_run_with_requested_recipe(client: TestClient, db: Session) -> None:
    job = ask(
        client,
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 4}},
        },
        suffix="demo",
        seed=7,
        metadata={"team": "a"},
        x_studio={"precision": "fp32", "adapter": {"kind": "full"}},
    ).json()

    run = runs.get(db, job["x_studio"]["run"])
    recipe = run.recipe
    assert (job["id"], job["status"], run.name) == (f"ftjob-{run.id}", "queued", "demo")
    assert (recipe.optimisation.num_train_epochs, recipe.optimisation.seed) == (2, 7)
    assert (recipe.optimisation.per_device_train_batch_size, recipe.adapter.kind) == (4, "full")
    assert (recipe.precision, job["metadata"], job["suffix"]) == ("fp32", {"team": "a"}, "demo")


WANDB = {"type": "wandb", "wandb": {"project": "pets", "name": "a", "tags": ["x", "y"]}}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the package count as installed: jobs are only accepted with it."""
    known = tmp_path / "packages" / "wandb-0.31.0.dist-info"
    known.mkdir(parents=True)
    (known / "METADATA").write_text("Name: wandb\nVersion: 0.31.0\n")
    monkeypatch.syspath_prepend(known.parent)


@pytest.mark.usefixtures("wandb")
def test_job_is_sent_to_its_integrations(client: TestClient, db: Session) -> None:
    other = {"type": "wandb", "wandb": {"project": "cats", "entity": "team"}}
    job = ask(client, integrations=[WANDB, other]).json()

    sent = [one["wandb"] for one in job["integrations"]]
    assert [(one["project"], one["name"], one["entity"]) for one in sent] == [
        ("pets", "a", None),
        ("cats", None, "team"),
    ]
    assert [row.key for row in trackers.list_for_run(db, job["x_studio"]["run"])] == [
        "wandb",
        "wandb-2",
    ]
    assert client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()["integrations"] == sent_whole(
        sent
    )


def sent_whole(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "wandb", "wandb": one} for one in sent]


@pytest.mark.usefixtures("wandb")
def test_at_most_five_integrations_are_accepted(client: TestClient) -> None:
    assert error(ask(client, integrations=[WANDB] * 6)) == (400, "invalid", "integrations")


def test_integration_without_its_package_is_refused(client: TestClient) -> None:
    if TRACKERS["wandb"].is_installed:
        pytest.skip("wandb is installed here")
    refused = ask(client, integrations=[WANDB])

    assert error(refused) == (400, "unsupported_parameter", "integrations")
    assert "not installed: wandb" in refused.json()["error"]["message"]


def test_auto_hyperparameters_are_returned_resolved(client: TestClient) -> None:
    job = ask(client, hyperparameters={"n_epochs": "auto"}).json()

    resolved = {"n_epochs": 3, "batch_size": 8, "learning_rate_multiplier": 1.0}
    assert job["hyperparameters"] == resolved
    assert job["method"] == {"type": "supervised", "supervised": {"hyperparameters": resolved}}


def test_learning_rate_multiplier_scales_recommended_rate(client: TestClient) -> None:
    job = ask(client, hyperparameters={"learning_rate_multiplier": 0.5}).json()

    told = job["x_studio"]
    assert told["recipe"]["optimisation"]["learning_rate"] == pytest.approx(
        0.5 * told["recommended_learning_rate"]
    )
    assert job["hyperparameters"]["learning_rate_multiplier"] == 0.5


def test_recipe_can_set_learning_rate_directly(client: TestClient) -> None:
    job = ask(client, x_studio={"optimisation": {"learning_rate": 1e-4, "max_steps": 3}}).json()

    optimisation = job["x_studio"]["recipe"]["optimisation"]
    assert (optimisation["learning_rate"], optimisation["max_steps"]) == (1e-4, 3)


def test_x_studio_may_set_only_part_of_a_section(client: TestClient) -> None:
    job = ask(client, x_studio={"adapter": {"r": 4}}).json()

    adapter = job["x_studio"]["recipe"]["adapter"]
    assert (adapter["kind"], adapter["r"]) == ("lora", 4)


@pytest.mark.parametrize("name", ["nothing", 7, None])
def test_unknown_method_is_rejected(client: TestClient, name: object) -> None:
    answer = ask(client, x_studio={"method": name})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("x_studio")


def test_the_recipe_may_name_a_method(client: TestClient) -> None:
    texts = "".join(json.dumps({"text": f"Text {number}."}) + "\n" for number in range(30))
    file = bring(client, texts.encode())
    job = ask(client, training_file=file["id"], x_studio={"method": "cpt"}).json()

    recipe = job["x_studio"]["recipe"]
    assert (recipe["method"], recipe["data"]["packing"]) == ("cpt", True)
    assert recipe["optimisation"]["num_train_epochs"] == 1


PAIRS = "".join(
    json.dumps(
        {
            "input": {"messages": [{"role": "user", "content": f"Question {number}?"}]},
            "preferred_output": [{"role": "assistant", "content": f"Answer {number}."}],
            "non_preferred_output": [{"role": "assistant", "content": "No idea."}],
        }
    )
    + "\n"
    for number in range(30)
).encode()


def test_dpo_job_creates_run_with_its_hyperparameters(client: TestClient) -> None:
    file = bring(client, PAIRS)
    asked = {"n_epochs": 2, "beta": 0.4, "learning_rate_multiplier": 0.5}
    method = {"type": "dpo", "dpo": {"hyperparameters": asked}}
    job = ask(client, training_file=file["id"], method=method).json()

    recipe = job["x_studio"]["recipe"]
    assert (recipe["method"], recipe["preference"]["beta"]) == ("dpo", 0.4)
    assert recipe["optimisation"]["learning_rate"] == pytest.approx(1.5e-3)
    resolved = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5, "beta": 0.4}
    assert job["method"] == {"type": "dpo", "dpo": {"hyperparameters": resolved}}


def test_dpo_chooses_its_own_defaults(client: TestClient) -> None:
    file = bring(client, PAIRS)
    job = ask(client, training_file=file["id"], method={"type": "dpo"}).json()

    resolved = {"n_epochs": 1, "batch_size": 8, "learning_rate_multiplier": 1.0, "beta": 0.1}
    assert job["method"]["dpo"]["hyperparameters"] == resolved


def test_rows_that_the_method_cannot_read_are_rejected(client: TestClient) -> None:
    answer = ask(client, method={"type": "dpo"})

    assert answer.status_code == 400
    assert "cannot train on conversations" in answer.json()["error"]["message"]


def test_encoder_decoder_models_get_the_method_made_for_them(
    client: TestClient, tmp_path: Path
) -> None:
    weights = {"a": ("F32", [0.5] * 4)}
    folder = str(safetensors_folders.write(tmp_path / "t5", weights, model_type="t5"))
    refused = ask(client, model=folder)
    job = ask(
        client, model=folder, x_studio={"method": "seq2seq", "rewriting": {"judged_answers": 8}}
    ).json()

    recipe = job["x_studio"]["recipe"]
    assert (refused.status_code, "encoder" in refused.text) == (400, True)
    assert (recipe["method"], recipe["rewriting"]["judged_answers"]) == ("seq2seq", 8)


def test_job_of_an_encoder_decoder_ends_with_its_own_metrics(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    """Its model rewrites texts, so a chat is refused with where to try it."""
    weights = {"a": ("F32", [0.5] * 4)}
    folder = str(safetensors_folders.write(tmp_path / "t5", weights, model_type="t5"))
    wish = {"method": "seq2seq", "rewriting": {"num_beams": 4}}
    ask(client, model=folder, x_studio=wish)
    with unit_of_work(engine) as db:
        run = runs.get(db, 1)
        states.move(db, run, RunStatus.STARTING)
        told = factories.metrics_event(3, loss=1.0, eval_loss=0.9, eval_chrf_share=0.4)
        ends = Finished(metrics={"eval_loss": 0.9, "eval_chrf_share": 0.4})
        attempts.apply_events(db, run, [Started(total_steps=3, resolved={}), told, ends], 1)
    job = client.get("/v1/fine_tuning/jobs/ftjob-1").json()
    turns = [{"role": "user", "content": "Hello"}]
    chat = client.post(
        "/v1/chat/completions", json={"model": job["fine_tuned_model"], "messages": turns}
    )

    assert (job["status"], job["x_studio"]["recipe"]["rewriting"]["num_beams"]) == ("succeeded", 4)
    assert chat.status_code == 400
    assert "rewrites texts" in chat.text


def test_x_studio_names_a_method_that_openai_lacks(client: TestClient) -> None:
    file = bring(client, PAIRS)
    job = ask(
        client,
        training_file=file["id"],
        method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.4}}},
        x_studio={"method": "kto"},
    ).json()

    recipe = job["x_studio"]["recipe"]
    assert (recipe["method"], recipe["rating"]["beta"]) == ("kto", 0.1)
    assert job["method"]["type"] == "supervised"


@pytest.mark.parametrize(
    ("job", "refusal"),
    [
        ({"method": {"type": "dpo", "dpo": {"beta": 1}}}, (400, "unknown_parameter", "beta")),
        (
            {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 3}}}},
            (400, "invalid", "method.dpo.hyperparameters.beta"),
        ),
        ({"method": {"type": "dpo", "supervised": {}}}, (400, "invalid", "method.supervised")),
        ({"method": {"dpo": {}}}, (400, "invalid", "method.dpo")),
        ({"method": {"type": "distillation"}}, (400, "unsupported_method", "method.type")),
        ({"training_file": "file-99"}, (400, "invalid_training_file", "training_file")),
        ({"validation_file": "nope"}, (400, "invalid_validation_file", "validation_file")),
        ({"model": "gpt-4o-mini"}, (400, "model_not_found", "model")),
        ({"integrations": [{"type": "wandb"}]}, (400, "invalid", "integrations.0.wandb")),
        ({"integrations": [{"type": "comet"}]}, (400, "invalid", "integrations.0.type")),
        ({"n_epoch": 3}, (400, "unknown_parameter", "n_epoch")),
        ({"hyperparameters": {"beta": 1}}, (400, "unknown_parameter", "beta")),
        ({"metadata": {'a"b': "1"}}, (400, "invalid", 'metadata.a"b')),
        ({"suffix": "x" * 65}, (400, "invalid", "suffix")),
        ({"x_studio": {"precisoin": "fp32"}}, (400, "invalid", "x_studio.precisoin")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_unsupported_job_requests_return_openai_errors(
    client: TestClient, job: dict[str, Any], refusal: tuple[int, str, str]
) -> None:
    assert error(ask(client, **job)) == refusal


def test_unknown_job_returns_404(client: TestClient) -> None:
    found = error(client.get("/v1/fine_tuning/jobs/ftjob-99"))

    assert found == (404, "fine_tune_not_found", "fine_tune_id")


def test_unknown_path_returns_openai_error(client: TestClient) -> None:
    assert error(client.get("/v1/assistants")) == (404, "not_found", None)


def test_client_retry_creates_no_second_job(client: TestClient) -> None:
    first = ask(client, {"x-stainless-retry-count": "0"}).json()
    again = ask(client, {"x-stainless-retry-count": "1"}).json()
    other = ask(client, {"x-stainless-retry-count": "0"}).json()

    assert (again["id"], other["id"]) == (first["id"], "ftjob-2")


def test_idempotency_key_creates_one_job(client: TestClient) -> None:
    first = ask(client, {"Idempotency-Key": "k1"}).json()

    assert ask(client, {"Idempotency-Key": "k1"}).json()["id"] == first["id"]
    assert error(ask(client, {"Idempotency-Key": "k1"}, seed=3))[0] == 400


def test_jobs_are_paginated_newest_first(client: TestClient) -> None:
    for team in ("a", "b", "a"):
        ask(client, metadata={"team": team})

    first = client.get("/v1/fine_tuning/jobs", params={"limit": 2}).json()
    rest = client.get("/v1/fine_tuning/jobs", params={"after": first["last_id"]}).json()
    mine = client.get("/v1/fine_tuning/jobs", params={"metadata[team]": "a"}).json()

    assert [one["id"] for one in first["data"]] == ["ftjob-3", "ftjob-2"]
    assert (first["has_more"], [one["id"] for one in rest["data"]]) == (True, ["ftjob-1"])
    assert [one["id"] for one in mine["data"]] == ["ftjob-3", "ftjob-1"]


def test_run_started_elsewhere_is_listed_as_job(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)

    job = client.get("/v1/fine_tuning/jobs/ftjob-1").json()

    assert (job["status"], job["fine_tuned_model"]) == ("succeeded", "ft:starter:local::1")
    assert (job["training_file"], job["result_files"]) == ("file-1", ["file-results-1"])
    assert job["trained_tokens"] == 1000


@pytest.mark.parametrize(
    ("verb", "status"), [("pause", "pausing"), ("cancel", "cancelled")], ids=["pause", "cancel"]
)
def test_running_job_can_be_paused_and_cancelled(
    client: TestClient, engine: Engine, verb: str, status: str
) -> None:
    with unit_of_work(engine) as db:
        factories.make_running(db)

    assert client.post(f"/v1/fine_tuning/jobs/ftjob-1/{verb}").json()["status"] == status


def test_paused_job_can_be_resumed(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = factories.make_running(db)
        run_commands.pause(db, 1)
        states.move(db, run, RunStatus.PAUSED)

    assert client.get("/v1/fine_tuning/jobs/ftjob-1").json()["status"] == "paused"
    assert client.post("/v1/fine_tuning/jobs/ftjob-1/resume").json()["status"] == "queued"


def test_conflict_response_disables_client_retry(client: TestClient) -> None:
    ask(client)

    answer = client.post("/v1/fine_tuning/jobs/ftjob-1/resume")

    assert error(answer)[:2] == (409, "conflict")
    assert answer.headers["x-should-retry"] == "false"


def test_events_are_paginated_newest_first_without_duplicates(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)
    path = "/v1/fine_tuning/jobs/ftjob-1/events"

    whole = client.get(path, params={"limit": 100}).json()["data"]
    seen: list[dict[str, Any]] = []
    while True:
        after = {"after": seen[-1]["id"]} if seen else {}
        page = client.get(path, params={"limit": 3, **after}).json()
        seen += page["data"]
        if not page["has_more"]:
            break

    assert seen == whole
    assert sorted(one["data"]["step"] for one in whole if one["type"] == "metrics") == [
        *range(1, 11)
    ]
    assert {one["message"] for one in whole} >= {"Step 3/10: training loss=2.7000", "Done."}


def test_final_model_is_last_checkpoint(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_finished_run(db)

    told = client.get("/v1/fine_tuning/jobs/ftjob-1/checkpoints").json()

    (last,) = told["data"]
    assert (last["id"], last["step_number"]) == ("ftckpt_1_10", 10)
    assert last["fine_tuned_model_checkpoint"] == "ft:starter:local::1"
    assert last["metrics"] == {"step": 10, "train_loss": 2.0}


def test_job_waits_for_validation_file(client: TestClient, engine: Engine) -> None:
    training, validation = bring(client), bring(client, ROWS[:400].rpartition(b"\n")[0])

    job = ask(client, training_file=training["id"], validation_file=validation["id"]).json()

    assert (job["status"], job["validation_file"]) == ("validating_files", validation["id"])
    with read_session(engine) as db:
        run = db.get_one(Run, job["x_studio"]["run"])
        assert (run.is_held, run.dataset_version_id) == (True, None)
