"""Graders in OpenAI's shapes: checked, tried on an answer, and asking models of the studio."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai.types.fine_tuning.alpha import GraderRunResponse
from sqlalchemy import Engine

from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.inference_services import (
    STARTED,
    FakeInferenceService,
    failed,
    run_inference_service,
)
from tests.unit.graders.test_schema import ALL, CHECK, LABEL, MULTI, PYTHON, SCORE, SIMILAR
from tests.web.openai import test_answers

home, _tokenizer = test_answers.home, test_answers._tokenizer

VALIDATE, RUN = (f"/v1/fine_tuning/alpha/graders/{verb}" for verb in ("validate", "run"))
ITEM = {"answer": "Paris", "question": "Where?"}


def judge(request: GenerationRequest) -> Iterator[GenerationChunk]:
    yield STARTED
    result = "4" if "number" in str(request.json_schema) else '"good"'
    yield GenerationChunk(text=f'{{"result": {result}}}')
    yield GenerationChunk(end=GenerationEnd(reason="stop", tokens=5))


@pytest.fixture
def service(settings: Settings) -> Iterator[FakeInferenceService]:
    with run_inference_service(settings, judge) as running:
        yield running


def refused(client: TestClient, path: str, body: dict[str, Any], status: int = 400) -> Any:  # noqa: ANN401 -- any JSON
    response = client.post(path, json=body)
    assert response.status_code == status, response.json()
    return response.json()["error"]


def run(client: TestClient, grader: dict[str, Any], answer: str = "Paris") -> dict[str, Any]:
    response = client.post(RUN, json={"grader": grader, "model_sample": answer, "item": ITEM})
    graded: dict[str, Any] = response.json()
    assert response.status_code == 200, graded
    return graded


@pytest.mark.parametrize("grader", ALL, ids=lambda grader: grader["type"])
def test_valid_grader_is_returned_as_it_was(client: TestClient, grader: dict[str, Any]) -> None:
    response = client.post(VALIDATE, json={"grader": grader})

    assert (response.status_code, response.json()) == (200, {"grader": grader})


@pytest.mark.parametrize(
    ("grader", "param", "message"),
    [
        (CHECK | {"operation": "is"}, "grader.operation", "Must be 'eq', 'ne', 'like' or 'ilike'."),
        (CHECK | {"input": "{{ x }}"}, "grader.input", "{{ x }} is no path such as item.answer"),
        (SIMILAR | {"evaluation_metric": "meteor"}, "grader.evaluation_metric", "meteor needs"),
        (MULTI | {"calculate_output": "1 +"}, "grader.calculate_output", "The formula cannot be"),
        (
            MULTI | {"graders": {"py": PYTHON | {"source": "1 +"}}, "calculate_output": "py"},
            "grader.graders.py.source",
            "SyntaxError: invalid syntax",
        ),
    ],
)
def test_invalid_grader_is_refused_with_path(
    client: TestClient, grader: dict[str, Any], param: str, message: str
) -> None:
    told = refused(client, VALIDATE, {"grader": grader})

    assert told["param"] == param
    assert told["message"].startswith(f"{param}: {message}")


def test_unknown_model_is_refused_with_path(client: TestClient) -> None:
    parts = {"judge": SCORE | {"model": "gpt-4o"}}
    grader = MULTI | {"graders": parts, "calculate_output": "judge"}
    told = refused(client, VALIDATE, {"grader": grader}, 404)

    assert (told["code"], told["param"]) == ("model_not_found", "grader.graders.judge.model")


def test_unknown_field_is_refused(client: TestClient) -> None:
    body = {"grader": CHECK, "model_sample": "x", "reference_answer": "y"}

    assert refused(client, RUN, body)["code"] == "unknown_parameter"


def test_answer_is_scored_in_openais_shape(client: TestClient) -> None:
    graded = run(client, CHECK)
    read = GraderRunResponse.model_validate(graded)

    assert (read.reward, read.sub_rewards, read.metadata.scores) == (1.0, {}, {"exact": 1.0})
    assert (read.metadata.name, read.metadata.type) == ("exact", "string_check")
    assert not any(dict(read.metadata.errors).values())
    assert read.metadata.execution_time > 0
    assert graded["metadata"]["x_studio"] == {"messages": [], "unclipped": None, "python": []}


def test_item_may_be_left_out(client: TestClient) -> None:
    body = {"grader": CHECK | {"reference": "Paris"}, "model_sample": "Paris"}

    assert client.post(RUN, json=body).json()["reward"] == 1.0


def test_error_is_no_score_and_says_why(client: TestClient) -> None:
    graded = run(client, CHECK | {"reference": "{{ item.reply }}"})

    assert graded["reward"] is None
    assert graded["metadata"]["errors"]["invalid_variable_error"] is True
    assert graded["metadata"]["x_studio"]["messages"] == [
        "item.reply does not exist: item has only these keys: answer, question."
    ]


def test_program_is_sealed_and_clipped(client: TestClient) -> None:
    source = "import os\ndef grade(sample, item): return os.system('true') or 32512"
    graded = run(client, PYTHON | {"source": source})

    assert graded["reward"] == 1.0
    assert graded["metadata"]["x_studio"]["unclipped"] == 32512
    assert graded["metadata"]["x_studio"]["python"][0].startswith("sealed (")


def test_half_characters_are_no_failure(client: TestClient) -> None:
    """JSON can write what UTF-8 cannot."""
    source = "def grade(sample, item): raise ValueError(sample['output_text'] + '\\ud800')"
    grader = PYTHON | {"source": source, "name": "\ud800"}
    for path, body in (
        (RUN, {"grader": grader, "model_sample": "\ud800"}),
        (VALIDATE, {"grader": grader}),
        (RUN, {"grader": PYTHON | {"source": source}, "model_sample": "x", "item": "\ud800"}),
        (RUN, {"grader": CHECK | {"input": "{{ \ud800 }}"}, "model_sample": "x"}),
    ):
        content = json.dumps(body)
        response = client.post(path, content=content, headers={"Content-Type": "application/json"})

        assert response.status_code in {200, 400}, response.text


def test_programs_can_be_turned_off(settings: Settings, engine: Engine) -> None:
    off = TestClient(create_app(engine, settings.model_copy(update={"python_graders": "off"})))
    graded = run(off, PYTHON)
    told = refused(off, VALIDATE, {"grader": PYTHON})

    assert graded["metadata"]["errors"]["python_grader_server_error_type"] == "off"
    assert told["param"] == "grader.source"
    assert "turned off" in told["message"]


def test_model_of_studio_gives_score(client: TestClient, service: FakeInferenceService) -> None:
    graded = run(client, SCORE)
    (asked,) = service.requests

    assert (graded["reward"], graded["metadata"]["sampled_model_name"]) == (4.0, "starter")
    assert (asked.temperature, asked.seed, asked.most) == (0, 1, 64)
    assert asked.json_schema is not None
    assert asked.json_schema["properties"]["result"]["maximum"] == 5
    tokens = len(asked.ids) + 5
    assert graded["metadata"]["token_usage"] == tokens
    assert graded["model_grader_token_usage_per_model"] == {"starter": tokens}


def test_formula_combines_all_types(client: TestClient, service: FakeInferenceService) -> None:
    parts = {"exact": CHECK, "near": SIMILAR, "label": LABEL, "py": PYTHON, "judge": SCORE}
    formula = "(exact + near + label + py + judge) / 8"
    graded = run(client, MULTI | {"graders": parts, "calculate_output": formula})

    assert graded["reward"] == 1.0
    assert graded["sub_rewards"] == {
        "exact": 1.0,
        "near": 1.0,
        "label": 1.0,
        "py": 1.0,
        "judge": 4.0,
    }
    assert len(service.requests) == 2


def test_model_that_fails_is_a_server_error(settings: Settings, client: TestClient) -> None:
    failure = failed("out_of_memory", "Out of memory.", "Wait.")
    with run_inference_service(settings, lambda _: failure):
        graded = run(client, SCORE)
    errors = graded["metadata"]["errors"]

    assert (graded["reward"], errors["model_grader_server_error"]) == (None, True)
    assert errors["model_grader_server_error_details"] == "Out of memory. Wait."


def test_unknown_model_is_a_server_error(client: TestClient) -> None:
    errors = run(client, SCORE | {"model": "gpt-4o"})["metadata"]["errors"]

    assert "gpt-4o" in errors["model_grader_server_error_details"]
