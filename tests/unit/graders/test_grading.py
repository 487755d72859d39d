"""Graders at work: scores, clipped scores, and errors, which are no scores."""

from typing import Any

import pytest

from studio.errors import InvalidError, NotFoundError
from studio.graders.grades import ErrorFlag, Grade
from studio.graders.grading import Grading
from studio.graders.model_questions import AskModel, ModelQuestion, ModelReply
from studio.graders.python_process import PythonLimits
from studio.graders.schema import parse_grader
from studio.graders.templates import Sample
from tests.unit.graders.test_schema import CHECK, LABEL, MULTI, PYTHON, SCORE, SIMILAR

PATIENT = PythonLimits(seconds=30, start_seconds=60)
ITEM = {"answer": "Paris", "question": "Where?"}


def grade(
    data: dict[str, Any], answer: str, item: object = None, ask: AskModel | None = None
) -> Grade:
    with Grading(parse_grader(data), "trusted", ask_model=ask, limits=PATIENT) as grading:
        return grading.grade(Sample(answer), ITEM if item is None else item)


def replies(text: str, asked: list[ModelQuestion] | None = None) -> AskModel:
    def ask(question: ModelQuestion) -> ModelReply:
        if asked is not None:
            asked.append(question)
        return ModelReply(text=text, model=question.model, tokens=12)

    return ask


@pytest.mark.parametrize(
    ("operation", "answer", "reward"),
    [
        *(("eq", "Paris", 1), ("eq", "paris", 0), ("eq", "Paris.", 0), ("ne", "Rome", 1)),
        *(("ne", "Paris", 0), ("like", "It is Paris.", 1), ("like", "It is PARIS.", 0)),
        *(("ilike", "It is PARIS.", 1), ("ilike", "Rome", 0)),
    ],
)
def test_strings_are_checked(operation: str, answer: str, reward: float) -> None:
    graded = grade(CHECK | {"operation": operation}, answer)

    assert (graded.reward, graded.errors.flags, graded.messages) == (reward, [], ())


def test_case_is_ignored_in_any_script() -> None:
    assert grade(CHECK | {"operation": "ilike"}, "STRASSE", {"answer": "straße"}).reward == 1


def test_formula_combines_scores() -> None:
    graded = grade(MULTI, "Paris!", ask=replies('{"result": "good"}'))

    assert graded.reward == 0.5
    assert {name: part.reward for name, part in graded.parts.items()} == {
        "exact": 0.0,
        "near": 10 / 11,
        "label": 1.0,
    }


@pytest.mark.parametrize(
    ("data", "answer", "flag", "message"),
    [
        (CHECK | {"reference": "{{ item.reply }}"}, "x", "invalid_variable_error", "item.reply"),
        (CHECK | {"input": "{{ sample.output_json.a }}"}, "x", "sample_parse_error", "not JSON"),
        (PYTHON | {"source": "def grade(sample, item):\n    return item['b']"}, "x",
         "python_grader_runtime_error", "KeyError: 'b' (line 2)"),
        (PYTHON | {"source": "grade = 1"}, "x", "python_grader_runtime_error", "no function grade"),
        (PYTHON | {"source": "def grade(:"}, "x", "python_grader_runtime_error", "SyntaxError"),
        (PYTHON | {"source": "import numpy"}, "x", "python_grader_runtime_error", "numpy is not"),
        (PYTHON | {"source": "import os\nos._exit(1)"}, "x", "python_grader_server_error", "ended"),
        (PYTHON | {"source": "def grade(sample, item): pass"}, "x", "python_grader_runtime_error",
         "grade returned nothing instead of a number"),
        (SIMILAR, "x" * 50_001, "other_error", "more than 50,000 characters are not compared"),
        (SCORE, "x", "model_grader_server_error", "No model can be asked here."),
        (MULTI | {"calculate_output": "exact / (near - near)", "graders": {
            "exact": CHECK, "near": SIMILAR}}, "x", "formula_parse_error", "has no value here"),
    ],
)  # fmt: skip
def test_error_is_no_score(
    data: dict[str, Any], answer: str, flag: ErrorFlag, message: str
) -> None:
    graded = grade(data, answer)

    assert (graded.reward, graded.errors.flags) == (None, [flag])
    assert message in graded.messages[0]


def test_error_of_part_is_that_of_the_whole() -> None:
    parts = {"exact": CHECK, "broken": PYTHON | {"source": "def grade(sample, item): return 1/0"}}
    graded = grade(MULTI | {"graders": parts, "calculate_output": "exact + broken"}, "Paris")

    assert (graded.reward, graded.errors.flags) == (None, ["python_grader_runtime_error"])
    assert graded.messages == ("broken: ZeroDivisionError: division by zero (line 1)",)
    assert graded.errors.python_grader_runtime_error_details == graded.messages[0][8:]
    assert (graded.parts["exact"].reward, graded.parts["broken"].reward) == (1.0, None)


@pytest.mark.parametrize(("score", "reward"), [("32512", 1.0), ("-1", 0.0), ("1e300", 1.0)])
def test_score_is_clipped_and_says_so(score: str, reward: float) -> None:
    graded = grade(PYTHON | {"source": f"def grade(sample, item): return {score}"}, "x")

    assert (graded.reward, graded.unclipped, graded.errors.flags) == (reward, float(score), [])
    assert graded.messages[0].startswith(f"The score {float(score):g} is outside 0 to 1: ")


def test_formula_is_clipped_and_parts_before_it() -> None:
    source = PYTHON | {"source": "def grade(sample, item): return 9"}
    data = MULTI | {"graders": {"a": source, "b": CHECK}, "calculate_output": "2 * a"}
    graded = grade(data, "Paris")

    assert (graded.reward, graded.unclipped, graded.parts["a"].unclipped) == (1.0, 2.0, 9.0)
    assert graded.messages == (
        "a: The score 9 is outside 0 to 1: 1 is used.",
        "The score 2 is outside 0 to 1: 1 is used.",
    )


def test_program_sees_sample_and_item() -> None:
    source = """
def grade(sample, item):
    assert sample["output_text"] == '{"a": [1]}', sample
    assert sample["output_json"] == {"a": [1]}, sample
    assert sample["output_tools"] == [], sample
    assert sample["choices"][0]["message"]["content"] == sample["output_text"], sample
    assert item == {"answer": "Paris", "question": "Where?"}, item
    print("unseen")
    return len(sample["output_text"]) == 10
"""
    assert grade(PYTHON | {"source": source}, '{"a": [1]}').reward == 1.0


def test_model_is_asked_with_filled_templates() -> None:
    asked: list[ModelQuestion] = []
    graded = grade(SCORE, "Paris", ask=replies('{"result": 4}', asked))

    assert (graded.reward, graded.model, graded.tokens) == (4.0, "starter", 12)
    assert asked[0].messages == (
        {"role": "developer", "content": "Judge."},
        {"role": "user", "content": "Where?Paris"},
    )
    assert asked[0].max_tokens == 64
    assert asked[0].reply_schema["properties"]["result"] == {
        "type": "number",
        "minimum": 1.0,
        "maximum": 5.0,
    }


def test_score_of_model_is_clipped_to_its_range() -> None:
    graded = grade(SCORE, "Paris", ask=replies('{"result": 0}'))

    assert (graded.reward, graded.unclipped) == (1.0, 0.0)
    assert graded.messages == ("The score 0 is outside 1 to 5: 1 is used.",)


@pytest.mark.parametrize("text", ["", "4", "{}", '{"result": "4"}', '{"result": true}', "[4]",
                                  '{"result": 4', '{"result": ' + "9" * 999 + "}"])  # fmt: skip
def test_reply_that_cannot_be_read_is_no_score(text: str) -> None:
    graded = grade(SCORE, "Paris", ask=replies(text))

    assert (graded.reward, graded.errors.flags) == (None, ["model_grader_parse_error"])


@pytest.mark.parametrize(("label", "reward"), [("good", 1.0), ("bad", 0.0), ("fine", None)])
def test_label_passes_or_not(label: str, reward: float | None) -> None:
    assert grade(LABEL, "Paris", ask=replies(f'{{"result": "{label}"}}')).reward == reward


def test_model_that_cannot_be_asked_is_named() -> None:
    def ask(question: ModelQuestion) -> ModelReply:
        raise NotFoundError(f"No model {question.model}.", hint="Use another.")

    graded = grade(SCORE, "Paris", ask=ask)

    assert graded.errors.flags == ["model_grader_server_error"]
    assert graded.errors.model_grader_server_error_details == "No model starter. Use another."


def test_python_graders_can_be_turned_off() -> None:
    with Grading(parse_grader(PYTHON), "off") as grading:
        graded = grading.grade(Sample("x"), {})

    assert graded.errors.python_grader_server_error_type == "off"
    assert "STUDIO_PYTHON_GRADERS" in graded.messages[0]


def test_program_that_cannot_be_loaded_is_named() -> None:
    parts = {"exact": CHECK, "broken": PYTHON | {"source": "def grade(:"}}
    grader = parse_grader(MULTI | {"graders": parts, "calculate_output": "exact + broken"})
    with (
        Grading(grader, "trusted", limits=PATIENT) as grading,
        pytest.raises(InvalidError) as raised,
    ):
        grading.load_programs()

    assert raised.value.param == "grader.graders.broken.source"
    assert raised.value.message == (
        "grader.graders.broken.source: SyntaxError: invalid syntax (<grader>, line 1)"
    )


def test_process_serves_all_answers_and_ends_when_closed() -> None:
    source = """
count = 0
def grade(sample, item):
    global count
    count += 1
    return count / 8
"""
    with Grading(parse_grader(PYTHON | {"source": source}), "trusted", limits=PATIENT) as grading:
        rewards = [grading.grade(Sample("x"), {}).reward for _ in range(4)]
        (process,) = grading._processes.values()
        running = process._process

    assert rewards == [0.125, 0.25, 0.375, 0.5]
    assert running is not None
    assert running.returncode is not None
