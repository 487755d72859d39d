"""Reinforcement jobs: OpenAI's graders and hyperparameters become the settings of GRPO."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.web.openai.test_jobs import ask, bring

GRADER: dict[str, Any] = {
    "type": "string_check",
    "name": "right",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
TASKS = "".join(
    json.dumps(
        {"messages": [{"role": "user", "content": f"What is {n} + 1?"}], "answer": str(n + 1)}
    )
    + "\n"
    for n in range(30)
).encode()


def make_method(
    grader: dict[str, Any] = GRADER,
    **hyperparameters: Any,  # noqa: ANN401 -- whatever is asked
) -> dict[str, Any]:
    reinforcement = {"grader": grader, "hyperparameters": hyperparameters}
    return {"type": "reinforcement", "reinforcement": reinforcement}


def test_hyperparameters_become_settings_and_are_reported(client: TestClient) -> None:
    asked: dict[str, Any] = {
        "n_epochs": 2,
        "batch_size": 6,
        "learning_rate_multiplier": 0.5,
        "compute_multiplier": 2,
        "eval_interval": 7,
        "eval_samples": 3,
    }
    file = bring(client, TASKS)
    job = ask(client, training_file=file["id"], method=make_method(**asked)).json()

    recipe = job["x_studio"]["recipe"]
    training = recipe["optimisation"]
    sizes = training["per_device_train_batch_size"], training["gradient_accumulation_steps"]
    assert (recipe["method"], sizes) == ("grpo", (3, 2))
    assert recipe["rollouts"]["answers_per_prompt"] == 16
    assert json.loads(recipe["reward"]["grader"]) == GRADER
    assert job["method"] == make_method(**asked | {"reasoning_effort": "default"})


def test_job_without_hyperparameters_uses_defaults(client: TestClient) -> None:
    file = bring(client, TASKS)
    method = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}
    job = ask(client, training_file=file["id"], method=method).json()

    resolved: dict[str, Any] = {
        "n_epochs": 1,
        "batch_size": 8,
        "learning_rate_multiplier": 1.0,
        "compute_multiplier": 1.0,
        "eval_interval": "auto",
        "eval_samples": 1,
        "reasoning_effort": "default",
    }
    assert job["method"] == make_method(**resolved)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 12, 30])
def test_batch_is_divided_into_equal_parts(client: TestClient, size: int) -> None:
    file = bring(client, TASKS)
    job = ask(client, training_file=file["id"], method=make_method(batch_size=size)).json()

    training = job["x_studio"]["recipe"]["optimisation"]
    parts = training["per_device_train_batch_size"]
    assert parts * training["gradient_accumulation_steps"] == size
    assert parts <= 4
    assert job["method"]["reinforcement"]["hyperparameters"]["batch_size"] == size


def test_conversations_can_be_trained_on(client: TestClient) -> None:
    """Their last answer is what graders compare with."""
    grader = GRADER | {"reference": "{{ item.reference_answer }}"}

    job = ask(client, method=make_method(grader)).json()

    assert job["method"]["type"] == "reinforcement"


@pytest.mark.parametrize(
    ("method", "param", "words"),
    [
        ({"type": "reinforcement"}, "method.reinforcement.grader", "needs a grader"),
        (
            make_method(GRADER | {"operation": "near"}),
            "method.reinforcement.grader",
            "operation",
        ),
        (
            make_method(GRADER | {"reference": "{{ row.answer }}"}),
            "method.reinforcement.grader",
            "row.answer",
        ),
        (
            make_method(compute_multiplier=100),
            "method.reinforcement.hyperparameters.compute_multiplier",
            "32",
        ),
        (
            make_method(reasoning_effort="high"),
            "method.reinforcement.hyperparameters.reasoning_effort",
            "default",
        ),
        (make_method(beta=1), "beta", "beta"),
        (make_method() | {"dpo": {}}, "method.dpo", "settings for dpo"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_job_that_cannot_run_is_refused(
    client: TestClient, method: dict[str, Any], param: str, words: str
) -> None:
    file = bring(client, TASKS)

    answer = ask(client, training_file=file["id"], method=method)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]
