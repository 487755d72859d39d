"""Forms of graders become JSON, and JSON becomes forms again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.graders import presets
from studio.graders.grading import Grading
from studio.graders.schema import MultiGrader, parse_grader
from studio.graders.templates import Sample
from studio.services.graders import builder
from studio.services.graders.builder import FormProblemsError, GraderForm, Part
from studio.services.graders.purposes import OTHER, PURPOSES
from tests.unit.graders.test_schema import ALL

ENTERED: Mapping[str, Mapping[str, str]] = {
    "exact": {"reference": "{{ item.answer }}", "ignore_case": "true", "ignore_stop": "true"},
    "contains": {"reference": "Paris"},
    "similar": {"reference": "{{ item.answer }}", "metric": "rouge_l"},
    "number": {"reference": '{{ item["the answer"] }}', "tolerance": "0.5"},
    "json": {"keys": "name, age"},
    "json_schema": {"schema": '{\n  "type": "array"\n}'},
    "pattern": {"pattern": "'\\d+\"", "is_whole": "true"},
    "length": {"low": "2", "high": "9", "unit": "characters", "margin": "3"},
    "judge": {"model": "endpoint:large", "criteria": "Right?\nKind?", "reference": "{{ item.a }}"},
    "reward": {"model": "run:17", "low": "-5", "high": "5"},
    "python": {"source": "def grade(sample, item):\n    return 0.5\n"},
    "other": {
        "json": '{\n  "type": "string_check",\n  "input": "{{ item.a }}",\n  "reference": "b",\n'
        '  "operation": "ne"\n}'
    },
}


def entered(purpose: str, **values: str) -> Part:
    defaults = dict.fromkeys(PURPOSES[purpose].defaults, "")
    return Part(
        purpose=purpose, name=purpose, values={**defaults, **ENTERED.get(purpose, {}), **values}
    )


@pytest.mark.parametrize("purpose", PURPOSES)
def test_what_was_entered_comes_back_from_the_json(purpose: str) -> None:
    form = GraderForm(parts=[entered(purpose)])
    text = builder.write_json(builder.build(form))

    assert builder.read(builder.read_json(text)) == form


def test_reward_model_without_limits_has_no_range() -> None:
    form = GraderForm(parts=[entered("reward", low="", high="")])
    grader = builder.build(form)

    assert "range" not in builder.to_json(grader)
    assert builder.read(grader) == form


MUST_BE_ENTERED = {"judge": "model", "reward": "model", "pattern": "pattern", "other": "json"}


@pytest.mark.parametrize("purpose", PURPOSES)
def test_only_what_has_no_default_must_be_entered(purpose: str) -> None:
    part = Part(purpose=purpose, name=purpose, values=builder.default_values(purpose, ["answer"]))
    problems: Mapping[str, str] = {}
    try:
        builder.build(GraderForm(parts=[part]))
    except FormProblemsError as error:
        problems = error.problems

    needed = MUST_BE_ENTERED.get(purpose)
    assert list(problems) == ([f"parts.0.{needed}"] if needed else [])


@pytest.mark.parametrize("grader", ALL, ids=lambda grader: grader["type"])
def test_every_grader_has_a_form_that_builds_it(grader: dict[str, Any]) -> None:
    read = parse_grader(grader)

    assert builder.build(builder.read(read)) == read


@pytest.mark.parametrize(
    "source",
    [
        presets.think_format("x").source + "# mine\n",
        presets.match_pattern("x", "a").source.replace("1.0", "0.5"),
        "def grade(sample, item):\n    return 1.0\n",
    ],
)
def test_program_that_was_changed_is_shown_as_a_program(source: str) -> None:
    read = parse_grader({"name": "x", "type": "python", "source": source})

    assert builder.read(read).parts[0].purpose == "python"


@pytest.mark.parametrize(
    ("purpose", "values", "field", "message"),
    [
        ("exact", {"reference": " "}, "reference", "Enter the expected answer."),
        ("exact", {"reference": "{{ row.a }}"}, "reference", "is no path such as item.answer"),
        ("exact", {"reference": "Paris"}, "reference", "Name one column of the row"),
        ("similar", {"metric": "cosine"}, "reference", "needs an embedding model"),
        ("number", {"tolerance": "much"}, "tolerance", "enter a number"),
        ("number", {"tolerance": "-1"}, "tolerance", "0 or more"),
        ("number", {"tolerance": "inf"}, "tolerance", "0 or more"),
        ("json_schema", {"schema": "{"}, "schema", "not valid JSON"),
        ("json_schema", {"schema": '{"if": true}'}, "schema", "keyword if cannot be checked"),
        ("pattern", {"pattern": "("}, "pattern", "No regular expression"),
        ("length", {"low": "9", "high": "2"}, "low", "at most the longest"),
        ("length", {"low": "1.5"}, "low", "whole number"),
        ("judge", {"model": ""}, "model", "Choose a model that judges."),
        ("judge", {"criteria": "{{ x }}"}, "criteria", "is no path"),
        ("reward", {"low": "5"}, "low", "less than the second"),
        ("reward", {"high": "nan"}, "low", "finite"),
        ("reward", {"high": ""}, "high", "enter a number"),
        ("python", {"source": ""}, "source", "Enter a program."),
        ("other", {"json": "[]"}, "json", "Enter one grader"),
        ("other", {"json": '{"type": "string_check"}'}, "json", "required"),
        ("other", {"json": '{"type": "multi"}'}, "json", "any type but multi"),
    ],
)
def test_wrong_field_is_named_with_what_to_do(
    purpose: str, values: dict[str, str], field: str, message: str
) -> None:
    with pytest.raises(FormProblemsError) as raised:
        builder.build(GraderForm(parts=[entered(purpose, **values)]))

    assert list(raised.value.problems) == [f"parts.0.{field}"]
    assert message in raised.value.problems[f"parts.0.{field}"]


def combined(*weights: str, formula: str = "") -> GraderForm:
    parts = [entered("number"), entered("thinking"), entered("reward")]
    weighed = [replace(part, weight=weight) for part, weight in zip(parts, weights, strict=False)]
    return GraderForm(parts=weighed, formula=formula)


@pytest.mark.parametrize(
    ("weights", "formula"),
    [
        (("1", "1"), "(number + thinking) / 2"),
        (("0.7", "0.3"), "0.7 * number + 0.3 * thinking"),
        (("2", "1"), "(2 * number + thinking) / 3"),
        (("1", "1", "2"), "(number + thinking + 2 * ((reward - (-5)) / 10)) / 4"),
    ],
)
def test_several_graders_become_their_weighted_mean(weights: tuple[str, ...], formula: str) -> None:
    grader = builder.build(combined(*weights))

    assert isinstance(grader, MultiGrader)
    assert grader.calculate_output == formula
    assert builder.read(builder.read_json(builder.write_json(grader))) == combined(*weights)


def test_formula_written_by_hand_is_kept() -> None:
    form = combined("1", "1", formula="min(number, thinking)")

    assert builder.read(builder.build(form)) == form


def test_formula_and_weights_are_checked() -> None:
    with pytest.raises(FormProblemsError, match="There is no grader other"):
        builder.build(combined("1", "1", formula="other"))
    with pytest.raises(FormProblemsError) as raised:
        builder.build(combined("0", "x"))
    assert list(raised.value.problems) == ["parts.0.weight", "parts.1.weight"]


def test_weighted_mean_is_computed_as_it_reads() -> None:
    form = GraderForm(
        parts=[
            entered("contains"),
            replace(entered("length", low="1", high="1", unit="words", margin="0"), weight="3"),
        ]
    )
    with Grading(builder.build(form), "trusted") as grading:
        rewards = [
            grading.grade(Sample(text), {}).reward for text in ("Paris", "Oslo", "to Paris", "a b")
        ]

    assert rewards == [1.0, 0.75, 0.25, 0.0]


def test_purposes_are_added_with_names_and_removed() -> None:
    form = GraderForm(parts=[Part(purpose="json", name="My JSON!", values={"keys": ""})])
    for purpose in ("json", "thinking"):
        form = builder.add(form, purpose, [])

    assert [part.name for part in form.parts] == ["json", "json_2", "thinking"]
    assert isinstance(builder.build(form), MultiGrader)
    assert [part.name for part in builder.remove(form, 0).parts] == ["json_2", "thinking"]
    only = GraderForm(parts=form.parts[:1])
    assert builder.remove(only, 0) == only
    with pytest.raises(InvalidError, match="no purpose"):
        builder.add(form, "luck", [])


def test_expected_answer_follows_the_columns_of_the_rows() -> None:
    form = GraderForm(parts=[entered("exact"), entered("contains"), entered("length")])

    adapted = builder.adapt(form, ["question", "solution"])

    assert adapted.parts[0].values["reference"] == "{{ item.solution }}"
    assert adapted.parts[1].values["reference"] == "Paris"
    assert builder.adapt(adapted, ["solution"]) == adapted
    assert builder.adapt(form, []) == form


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"type": "multi"}', "1" * 9999])
def test_text_that_is_no_grader_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(InvalidError):
        builder.read_json(text)


def test_purpose_without_a_form_keeps_every_field() -> None:
    grader = parse_grader({**ALL[0], "operation": "ne"})
    (part,) = builder.read(grader).parts

    assert part.purpose == OTHER
    assert builder.build(GraderForm(parts=[part])) == grader
