"""The columns that graders read are known where they are written as places, or by our programs."""

import pytest

from studio.graders import presets
from studio.graders.item_columns import list_item_columns
from studio.graders.schema import Grader, PythonGrader, parse_grader

TEXT = {"type": "string_check", "name": "a", "operation": "eq"}
JUDGE = {"type": "score_model", "name": "b", "model": "starter"}


ANSWER, WORDS = "{{ sample.output_text }}", "{{ item.topic }}"
BLOCK = {"type": "input_text", "text": "{{ item.a }}"}


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({**TEXT, "input": ANSWER, "reference": "{{ item.answer }}"}, ["answer"]),
        ({**TEXT, "input": '{{ item["an end"] }}', "reference": "{{item.b[0]}}"}, ["an end", "b"]),
        ({**TEXT, "input": "{{ item.a }}{{ item }}", "reference": "{{ item.a.b }}"}, ["a"]),
        ({**JUDGE, "input": [{"role": "user", "content": [WORDS, BLOCK]}]}, ["topic", "a"]),
        (
            {
                "type": "multi",
                "name": "c",
                "calculate_output": "a",
                "graders": {"a": {**TEXT, "input": "x", "reference": "{{ item.z }}"}},
            },
            ["z"],
        ),
    ],
)
def test_columns_of_places(fields: object, columns: list[str]) -> None:
    assert list_item_columns(parse_grader(fields)) == columns


@pytest.mark.parametrize(
    ("grader", "columns"),
    [
        (presets.number_equals("a", "item.answer"), ["answer"]),
        (presets.text_equals("a", 'item["the end"].x', ignore_case=True), ["the end"]),
        (presets.json_valid("a"), []),
        (PythonGrader(type="python", name="a", source='"{{ item.a }}"'), []),
    ],
)
def test_columns_of_programs(grader: Grader, columns: list[str]) -> None:
    assert list_item_columns(grader) == columns
