"""Graders that the studio writes as programs: run in the seal, as they would be at OpenAI."""

from typing import Any

import jsonschema  # type: ignore[import-untyped] # has no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.errors import InvalidError
from studio.evaluation.text_scores import last_number
from studio.evaluation.words import split_words
from studio.graders import presets, programs
from studio.graders.grading import Grading
from studio.graders.python_process import PythonLimits
from studio.graders.schema import PythonGrader, parse_grader
from studio.graders.templates import Sample

PATIENT = PythonLimits(seconds=30, start_seconds=60)


def grade(grader: PythonGrader, *answers: str, item: object = None) -> list[float | None]:
    """Grade answers with a preset as it comes back from JSON."""
    read = parse_grader(grader.model_dump(exclude_unset=True))
    with Grading(read, "trusted", limits=PATIENT) as grading:
        return [grading.grade(Sample(answer), item).reward for answer in answers]


def run(source: str) -> Any:  # noqa: ANN401 -- a program's function
    """Return the function of a program of ours, to call it often."""
    space: dict[str, Any] = {}
    exec(source, space)  # noqa: S102 -- written by the studio
    return space["grade"]


def test_regular_expression_is_searched_or_matched() -> None:
    search = presets.match_pattern("p", r"\bparis\b", ignore_case=True)
    whole = presets.match_pattern("p", r"\d+ (apples|梨)", is_whole=True)

    assert grade(search, "It is Paris.", "parisian", "") == [1, 0, 0]
    assert grade(whole, "12 apples", "5 梨", "12 apples.", "12 apples\n") == [1, 1, 0, 0]


def test_equal_text_may_differ_in_what_is_ignored() -> None:
    exact = presets.text_equals("p", "item.answer")
    lenient = presets.text_equals(
        "p", "item.answer", ignore_case=True, ignore_spaces=True, ignore_stop=True
    )
    item = {"answer": "New York"}

    assert grade(exact, "New York", "New York.", item=item) == [1, 0]
    assert grade(lenient, " new  york.\n", "New York。", "York", item=item) == [1, 1, 0]
    assert grade(lenient, "7", "true", item={"answer": 7}) == [1, 0]
    assert grade(lenient, "x", item={}) == [None]


def test_thinking_comes_first_and_once() -> None:
    answers = ("<think>a\nb</think>c", "c", "<think>a", "<think>a<think>b</think>c")

    assert grade(presets.think_format("p"), *answers) == [1, 0, 0, 0]


def test_length_falls_off_over_margin() -> None:
    words = presets.length_between("p", 2, 4, unit="words", margin=1)
    characters = presets.length_between("p", 0, 3, unit="characters")

    assert grade(words, "a b", "a b c d", "a b c d e", "a b c d e f", "a", "") == [
        *(1, 1, 0.5, 0, 0.5, 0),
    ]
    assert grade(words, "天气", "天气很好啊") == [1, 0.5]
    assert grade(characters, "abc", "a\nb", "abcd") == [1, 1, 0]


@pytest.mark.parametrize(
    "text", ["Two words, here.", "今天 is 天气", "x_y", "", "naïve café", "안녕"]
)
def test_length_counts_words_as_evaluations_do(text: str) -> None:
    count = len(split_words(text))
    exactly = presets.length_between("p", count, count, unit="words")

    assert run(exactly.source)({"output_text": text}, None) == 1.0


def test_number_is_the_last_one() -> None:
    grader = presets.number_equals("p", "item.rows[0].answer", tolerance=0.5)
    item = {"rows": [{"answer": "So 3 + 4 = 7.\n#### 1,007"}]}

    assert grade(grader, "It is 1007", "1006.5", "7", "none", "$1,007", item=item) == [
        *(1, 1, 0, 0, 1),
    ]
    assert grade(grader, "7", item={"rows": [{"answer": 7}]}) == [1]


@pytest.mark.parametrize("item", [{}, {"answer": "none"}, {"answer": None}])
def test_row_without_number_gives_no_score(item: object) -> None:
    assert grade(presets.number_equals("p", "item.answer"), "7", item=item) == [None]


@given(st.text("0123456789,.-+e$#% a\n一\u2212"), st.text("0123456789,.-e a"))
def test_number_is_read_as_evaluations_do(answer: str, expected: str) -> None:
    program = run(presets.number_equals("p", "item.answer").source)
    number = last_number(expected)
    if number is None:
        with pytest.raises(ValueError, match="no number"):
            program({"output_text": answer}, {"answer": expected})
    else:
        is_equal = last_number(answer) == number
        assert program({"output_text": answer}, {"answer": expected}) == float(is_equal)


def test_json_is_valid_or_has_keys() -> None:
    answers = ('{"a": 1, "b": null}', "[1]", "1", "{", '{"a": NaN}', "[" * 10**5)

    assert grade(presets.json_valid("p"), *answers) == [1, 1, 0, 0, 0, 0]
    assert grade(presets.json_valid("p", ["a", "b"]), *answers, '{"a": 1}') == [1, *[0] * 6]


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "people": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 10},
        "tags": {"type": "array", "items": {"enum": ["a", 1, True, None]}, "maxItems": 2},
        "kind": {"anyOf": [{"const": "x"}, {"type": "boolean"}]},
    },
    "required": ["city"],
    "additionalProperties": {"type": "number"},
}
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.sampled_from([0.0, 1.0, 2.5, "a", "Rome", ""])
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["city", "people", "tags", "kind", "other"]), inner, max_size=4
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(VALUES)
def test_schema_is_checked_as_jsonschema_does(value: object) -> None:
    import json  # noqa: PLC0415 -- beside the function of the same name

    program = run(presets.json_schema("p", SCHEMA).source)
    is_valid = jsonschema.Draft202012Validator(SCHEMA).is_valid(value)

    assert program({"output_text": json.dumps(value)}, None) == float(is_valid)


def test_schema_runs_in_the_seal() -> None:
    answers = ('{"city": "Rome", "people": 3}', '{"city": "rome"}', "{}", "no JSON")

    assert grade(presets.json_schema("p", SCHEMA), *answers) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"uniqueItems": True}, "schema: The keyword uniqueItems cannot be checked."),
        ({"properties": {"a": {"$ref": "#"}}}, "schema.properties.a: The keyword $ref cannot"),
        ({"type": "objekt"}, "schema.type: Must be one of object, array"),
        ({"anyOf": [{"pattern": "("}]}, "schema.anyOf.0.pattern: No regular expression"),
        ({"items": 1}, "schema.items: Must be an object with fields."),
        ({"minimum": "1"}, "schema.minimum: Must be a number."),
        ({"properties": []}, "schema.properties: Must be an object."),
    ],
)
def test_schema_that_cannot_be_checked_is_refused(schema: Any, message: str) -> None:  # noqa: ANN401 -- any schema
    with pytest.raises(InvalidError) as raised:
        presets.json_schema("p", schema)

    assert raised.value.message.startswith(message)


def test_presets_that_say_nothing_are_refused() -> None:
    with pytest.raises(InvalidError, match="No regular expression"):
        presets.match_pattern("p", "(")
    with pytest.raises(InvalidError, match="shortest"):
        presets.length_between("p", 3, 2, unit="words")
    with pytest.raises(InvalidError, match="no path"):
        presets.number_equals("p", "answer")
    with pytest.raises(InvalidError, match="a column of the row"):
        presets.number_equals("p", "sample.output_text")


@pytest.mark.parametrize(
    ("program", "grader", "values"),
    [
        ("match", presets.match_pattern("p", r"\d'\"+"), {"pattern": r"\d'\"+"}),
        ("length", presets.length_between("p", 1, 9, unit="words"), {"low": 1, "high": 9}),
        ("number", presets.number_equals("p", "item.a[0]"), {"path": ["a", 0], "tolerance": "0.0"}),
        ("json", presets.json_valid("p", ["a", "b"]), {"keys": ["a", "b"]}),
        ("schema", presets.json_schema("p", {"type": "object"}), {"schema": {"type": "object"}}),
        ("equal", presets.text_equals("p", "item.a", ignore_stop=True), {"stop": True}),
    ],
)
def test_values_of_a_program_are_read_back(
    program: str, grader: PythonGrader, values: dict[str, Any]
) -> None:
    read = {name: programs.read_values(name, grader.source) for name in programs.PROGRAMS}
    found = read.pop(program)

    assert found is not None
    assert {name: found[name] for name in values} == values
    assert set(read.values()) == {None}


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def grade(sample, item):\n    return 1.0\n",
        "import re\n\nPATTERN = re.compile(" + "'a', " * 50_000,
        "import re\n\nUNIT = re.compile('.', re.DOTALL)\nLOW, HIGH, MARGIN = " + "1, " * 80_000,
    ],
)
def test_other_programs_have_no_values(source: str) -> None:
    assert {programs.read_values(name, source) for name in programs.PROGRAMS} == {None}
