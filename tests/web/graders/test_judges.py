"""Graders that ask models behind addresses, and reward models of the studio."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine
from transformers import AutoTokenizer

from studio.protocols.run_dir import RunDir
from studio.services.models.reward_models import ADAPTER_WEIGHTS
from studio.settings import Settings
from studio.web.app import create_app
from studio.weights.safetensors_headers import WEIGHTS_FILE
from tests.fakes.judge_endpoint import run_judge, said
from tests.support import inference_services
from tests.support.inference_services import NO_SLOT
from tests.web.chat.test_try_it import SCORED, run, tokenizer_home
from tests.web.runs.test_score_runs import pairs

__all__ = ["pairs", "run", "tokenizer_home"]

VALIDATE, RUN = (f"/v1/fine_tuning/alpha/graders/{verb}" for verb in ("validate", "run"))
KEY = "sk-nobodysees"
PROMPT = "What is 3 and one?"


@pytest.fixture
def reward(run: RunDir, tokenizer_home: Path) -> RunDir:
    """Give the run of a reward model weights, and its base model, too."""
    (run.artifacts / ADAPTER_WEIGHTS).touch()
    (tokenizer_home / "base" / WEIGHTS_FILE).touch()
    return run


def grader(model: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- fields
    return {
        "name": "judge",
        "type": "score_model",
        "model": model,
        "input": [
            {"role": "user", "content": "{{ item.question }}"},
            {"role": "assistant", "content": "{{ sample.output_text }}"},
        ],
        **fields,
    }


def grade(client: TestClient, asked: dict[str, Any]) -> dict[str, Any]:
    body = {"grader": asked, "model_sample": "It is 4.", "item": {"question": PROMPT}}
    response = client.post(RUN, json=body)
    graded: dict[str, Any] = response.json()
    assert response.status_code == 200, graded
    return graded


def refused(client: TestClient, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    response = client.post(VALIDATE, json={"grader": asked})
    return response.status_code, response.json()["error"]


def test_endpoint_judges_and_its_key_stays_secret(engine: Engine, settings: Settings) -> None:
    with run_judge(lambda _request: said('{"result": 0.25}')) as made:
        listed = json.dumps([{"name": "large", "url": made.url, "model": "m-1", "key": KEY}])
        known = {"endpoints": SecretStr(listed), "allow_internal_addresses": True}
        client = TestClient(create_app(engine, settings.model_copy(update=known)))
        valid = client.post(VALIDATE, json={"grader": grader("endpoint:large")})
        graded = grade(client, grader("endpoint:large"))
        unknown = refused(client, grader("endpoint:small"))

    assert valid.status_code == 200, valid.text
    assert graded["reward"] == 0.25
    assert graded["metadata"]["sampled_model_name"] == "endpoint:large"
    assert made.keys == [f"Bearer {KEY}"]
    assert made.asked[0]["model"] == "m-1"
    assert KEY not in json.dumps(graded)
    assert (unknown[0], unknown[1]["param"]) == (404, "grader.model")
    assert "endpoint:large" in unknown[1]["message"]


def test_without_endpoints_the_answer_has_no_score(client: TestClient) -> None:
    graded = grade(client, grader("endpoint:large"))

    assert graded["reward"] is None
    assert graded["metadata"]["errors"]["model_grader_server_error"] is True
    details = graded["metadata"]["errors"]["model_grader_server_error_details"]
    assert details.startswith("There is no endpoint named large.")


def test_reward_model_scores_the_conversation(
    client: TestClient, settings: Settings, reward: RunDir
) -> None:
    asked = grader("run:1", range=[-5, 5])
    with inference_services.run_inference_service(settings, lambda _: SCORED) as service:
        graded = grade(client, asked)

    assert client.post(VALIDATE, json={"grader": asked}).status_code == 200
    assert (graded["reward"], graded["metadata"]["sampled_model_name"]) == (1.25, "run:1")
    (request,) = service.requests
    assert request.gives_scores
    written = AutoTokenizer.from_pretrained(reward.artifacts).decode(request.ids)
    assert PROMPT in written
    assert written.endswith("It is 4.<|im_end|>\n")


def test_score_without_a_range_is_squashed(
    client: TestClient, settings: Settings, reward: RunDir
) -> None:
    del reward
    with inference_services.run_inference_service(settings, lambda _: SCORED):
        graded = grade(client, grader("run:1"))

    assert graded["reward"] == pytest.approx(1 / (1 + math.exp(-1.25)))


@pytest.mark.usefixtures("run")
def test_reward_model_that_cannot_be_asked_gives_no_score(
    client: TestClient, settings: Settings
) -> None:
    with inference_services.run_inference_service(settings, lambda _: [NO_SLOT]):
        graded = grade(client, grader("run:1"))

    assert graded["reward"] is None
    assert "No slot is free." in graded["metadata"]["x_studio"]["messages"][0]


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        (grader("run:9"), 404, "There is no run 9."),
        (grader("run:2"), 400, "Run 2 trained no reward model."),
        (
            {
                **grader("run:1"),
                "type": "label_model",
                "labels": ["good", "bad"],
                "passing_labels": ["good"],
            },
            400,
            "A reward model gives scores, and no labels.",
        ),
    ],
)
@pytest.mark.usefixtures("reward")
def test_run_without_a_reward_model_is_refused(
    client: TestClient, changed: dict[str, Any], status: int, message: str
) -> None:
    given, error = refused(client, changed)

    assert (given, error["param"]) == (status, "grader.model")
    assert message in error["message"]
