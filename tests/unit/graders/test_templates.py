"""Places in templates are looked up, and nothing else is done with them."""

from typing import Any

import pytest

from studio.graders.grades import GradeError
from studio.graders.templates import Sample, check_template, fill

ITEM: dict[str, Any] = {
    "answer": "Paris",
    "答案": "巴黎",
    "n": 4,
    "none": None,
    "list": [{"a": "x"}, "y"],
    "deep": {"a-b": {"c d": True}},
}
SAMPLE = Sample('{"city": "Paris", "steps": [1, 2]}')


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("no place", "no place"),
        ("{{ item.answer }}", "Paris"),
        ("{{item.answer}}, {{item.n}}", "Paris, 4"),
        ("{{ item.答案 }}", "巴黎"),
        ("{{ item.none }}", "null"),
        ("{{ item.list[0].a }}{{ item.list[-1] }}", "xy"),
        ('{{ item.deep.a-b["c d"] }}', "true"),
        ("{{ item['答案'] }}", "巴黎"),
        ("{{ item.list }}", '[{"a": "x"}, "y"]'),
        ("{{ sample.output_text }}", SAMPLE.text),
        ("{{ sample.output_json.city }}", "Paris"),
        ("{{ sample.output_json.steps[1] }}", "2"),
        ("{{ sample.choices[0].message.role }}", "assistant"),
        ("{{ sample.output_tools }}", "[]"),
        ("{ item.answer }", "{ item.answer }"),
    ],
)
def test_place_becomes_value(template: str, expected: str) -> None:
    assert fill(check_template(template), SAMPLE, ITEM) == expected


def test_values_are_not_read_as_templates() -> None:
    assert fill("{{ item.a }}", SAMPLE, {"a": "{{ item.b }}", "b": "!"}) == "{{ item.b }}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{{ item.reply }}",
            "item.reply does not exist: item has only these keys: answer, 答案, n, none, list, …",
        ),
        ("{{ item.answer.x }}", "item.answer.x does not exist: item.answer is a text."),
        ("{{ item.none.x }}", "item.none.x does not exist: item.none is null."),
        ("{{ item.list[9] }}", "item.list[9] does not exist: item.list is a list with 2 entries."),
        ("{{ item.list.a }}", "item.list.a does not exist: item.list is a list with 2 entries."),
        ("{{ sample.output_json.x }}", "sample.output_json.x does not exist: "),
    ],
)
def test_missing_value_is_an_error_and_no_empty_text(template: str, message: str) -> None:
    with pytest.raises(GradeError) as raised:
        fill(template, SAMPLE, ITEM)

    assert raised.value.flag == "invalid_variable_error"
    assert raised.value.message.startswith(message.removesuffix("…"))


@pytest.mark.parametrize("text", ["no JSON", "", "NaN", '{"a": Infinity}', "[" * 10**5])
def test_answer_that_is_no_json_is_its_own_error(text: str) -> None:
    with pytest.raises(GradeError) as raised:
        fill("{{ sample.output_json.a }}", Sample(text), {})

    assert raised.value.flag == "sample_parse_error"


@pytest.mark.parametrize(
    "template",
    [
        "{{ item.__class__() }}",
        "{{ 7 * 7 }}",
        "{{ item.answer | upper }}",
        "{{ answer }}",
        "{{ items.answer }}",
        "{{ item..answer }}",
        "{{ item[] }}",
        "{{ sample.output }}",
        "{{ }}",
        "{{ item.list[99999999999999999999] }}",
        "{{ {{ item.answer }} }}",
        "{{ item.answer }",
        "{{ {} }}",
        pytest.param("{{" * 90_000, id="many brackets"),
        pytest.param("{{" + " " * 180_000, id="many spaces"),
        pytest.param("{{ item" + ".a" * 90_000 + "! }}", id="long path"),
    ],
)
def test_what_is_no_path_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"no path|sample has"):
        check_template(template)


def test_attributes_of_python_are_not_reached() -> None:
    with pytest.raises(GradeError):
        fill("{{ item.__class__.__mro__ }}", SAMPLE, ITEM)
