"""OpenAI's grader JSON is read as it is, and what is wrong is said with its path."""

from typing import Any, get_args, get_type_hints

import pytest
from openai.types import graders as openai_graders
from openai.types.fine_tuning.alpha import grader_run_params

from studio.errors import InvalidError
from studio.graders.schema import MultiGrader, parse_grader

CHECK: dict[str, Any] = {
    "type": "string_check",
    "name": "exact",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
SIMILAR: dict[str, Any] = {
    "type": "text_similarity",
    "name": "near",
    "evaluation_metric": "fuzzy_match",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
}
PYTHON: dict[str, Any] = {
    "type": "python",
    "name": "py",
    "image_tag": "2025-05-08",
    "source": "def grade(sample, item): return 1.0",
}
ASKED = [
    {"role": "developer", "content": "Judge."},
    {
        "role": "user",
        "type": "message",
        "content": [{"type": "input_text", "text": "{{ item.question }}"}, "{{ item.answer }}"],
    },
]
SCORE: dict[str, Any] = {
    "type": "score_model",
    "name": "judge",
    "model": "starter",
    "input": ASKED,
    "range": [1, 5],
    "sampling_params": {"temperature": 0, "max_completions_tokens": 64, "seed": 1, "top_p": 1},
}
LABEL: dict[str, Any] = {
    "type": "label_model",
    "name": "label",
    "model": "starter",
    "input": ASKED,
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
}
MULTI: dict[str, Any] = {
    "type": "multi",
    "name": "all",
    "calculate_output": "0.5 * exact + 0.5 * max(near, label)",
    "graders": {"exact": CHECK, "near": SIMILAR, "label": LABEL},
}
ALL = (CHECK, SIMILAR, PYTHON, SCORE, LABEL, MULTI)


@pytest.mark.parametrize("data", ALL, ids=lambda data: data["type"])
def test_grader_is_read_and_written_as_it_was(data: dict[str, Any]) -> None:
    assert parse_grader(data).model_dump(exclude_unset=True) == data


def test_all_of_openais_types_are_known() -> None:
    kinds = [*get_args(grader_run_params.Grader), openai_graders.LabelModelGraderParam]
    types = {get_args(get_type_hints(kind)["type"])[0] for kind in kinds}

    assert types == {data["type"] for data in ALL}


def test_single_grader_of_multi_has_its_own_name() -> None:
    """OpenAI's client types `graders` as one grader."""
    grader = parse_grader(MULTI | {"graders": CHECK, "calculate_output": "exact"})

    assert isinstance(grader, MultiGrader)
    assert list(grader.graders) == ["exact"]


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({}, "grader.type", "A value is required."),
        ({"type": "endpoint"}, "grader.type", "Must be one of 'string_check', "),
        ([], "grader", "Must be an object with fields."),
        (CHECK | {"operation": "equals"}, "grader.operation", "Must be 'eq', 'ne', 'like' or"),
        (CHECK | {"extra": 1}, "grader.extra", "Unknown field."),
        (CHECK | {"input": "{{ answer }}"}, "grader.input", "{{ answer }} is no path such as"),
        (CHECK | {"input": None}, "grader.input", "Must be text."),
        (
            SIMILAR | {"evaluation_metric": "cosine"},
            "grader.evaluation_metric",
            "cosine needs an embedding model, which this studio does not serve, so use one",
        ),
        (
            SIMILAR | {"evaluation_metric": "meteor"},
            "grader.evaluation_metric",
            "meteor needs WordNet",
        ),
        (PYTHON | {"source": ""}, "grader.source", "A value is required."),
        (SCORE | {"range": [1, 0]}, "grader.range", "The first number of a range must be less"),
        (SCORE | {"range": [1]}, "grader.range", "Must have at least 2 entries."),
        (
            SCORE | {"sampling_params": {"reasoning_effort": "high"}},
            "grader.sampling_params.reasoning_effort",
            "Must be 'none'.",
        ),
        (
            SCORE | {"input": [{"role": "user", "content": {"type": "input_image"}}]},
            "grader.input.0.content",
            "Models that judge read texts here, and no input_image.",
        ),
        (LABEL | {"passing_labels": ["fine"]}, "grader.passing_labels", "fine is none of the"),
        (MULTI | {"calculate_output": "exact + x"}, "grader.calculate_output", "There is no"),
        (MULTI | {"calculate_output": "exact +"}, "grader.calculate_output", "The formula cannot"),
        (MULTI | {"graders": {}}, "grader.graders", "A value is required."),
        (
            MULTI | {"graders": {"exact": CHECK | {"operation": "x"}}},
            "grader.graders.exact.operation",
            "Must be 'eq'",
        ),
        (MULTI | {"graders": {"a b": CHECK}}, "grader.graders.a b", "a b cannot stand in a"),
        (MULTI | {"graders": {"max": CHECK}}, "grader.graders.max", "max is a function of"),
        (MULTI | {"graders": {"if": CHECK}}, "grader.graders.if", "if cannot stand in a formula"),
        (
            MULTI | {"graders": {"inner": MULTI}},
            "grader.graders.inner",
            "A multi grader cannot hold another one.",
        ),
    ],
)
def test_error_names_path(data: object, path: str, message: str) -> None:
    with pytest.raises(InvalidError) as raised:
        parse_grader(data)

    assert raised.value.message.startswith(f"{path}: {message}")
    assert raised.value.param == path
