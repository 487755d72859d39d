"""Better and worse answers, ranked lists, and answers judged, in the forms people have them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from studio.intake.detection.row_shapes import detect_mapping
from studio.intake.mapping import Mapping, ShapeName
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import (
    TrainingExample,
    UnusableRowError,
    make_turn,
    to_training_example,
)

USER = make_turn("user", "Hi")
GOOD = make_turn("assistant", "Hello!")
BAD = {"role": "assistant", "content": "What?"}
TOOLS = [{"type": "function", "function": {"name": "greet"}}]
LESSON = TrainingExample(messages=[USER, GOOD])
PREFERENCE: dict[str, Any] = {"messages": [USER], "chosen": [GOOD], "rejected": [BAD]}


def shared(who: str, value: str) -> dict[str, str]:
    return {"from": who, "value": value}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "Hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {
            "conversations": [shared("human", "Hi")],
            "chosen": shared("gpt", "Hello!"),
            "rejected": shared("gpt", "What?"),
        },
        {"input": {"messages": [USER]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
        {key: json.dumps(value) for key, value in PREFERENCE.items()},
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Hello!",
            "rejected": "\n\nHuman: Hi\n\nAssistant: What?",
        },
        {"instruction": "Hi", "input": "", "chosen": "Hello!", "rejected": "What?"},
        {"question": "Hi", "response_chosen": "Hello!", "response_rejected": "What?"},
        {"prompt": "Hi", "answers": ["What?", "Hello!", "Hm."], "scores": [1, 9, 4]},
        {"prompt": "Hi", "answers": ["What?", "Hello!", "Hm."], "ranks": [3, 1, 2]},
        {"prompt": "Hi", "responses": ["Hello!", "Hm.", "What?"]},
        {"prompt": "Hi", "output": ["Hello!", "What?"]},
        {
            "prompt": "Hi",
            "completions": [{"text": "What?", "score": 0.1}, {"text": "Hello!", "score": "0.9"}],
        },
        {
            "prompt": [USER],
            "candidates": [{"content": "What?", "rank": 2}, {"content": "Hello!", "rank": 1}],
        },
    ],
)
def test_all_preference_formats_become_same_row(row: dict[str, Any]) -> None:
    found = detect_mapping([row])

    assert build_row(found.mapping, row) == PREFERENCE
    assert found.kind == "preference"


def test_shared_start_of_both_answers_becomes_prompt() -> None:
    more = {"role": "user", "content": "More"}
    row = {"chosen": [USER, GOOD, more, GOOD], "rejected": [USER, GOOD, more, BAD]}

    assert build_row(detect_mapping([row]).mapping, row) == {
        "messages": [USER, GOOD, more],
        "chosen": [GOOD],
        "rejected": [BAD],
    }


def test_preference_prompt_joins_instruction_and_input() -> None:
    asked = {"instruction": "Translate.", "input": "eau", "output": "water"}
    judged = {**asked, "kto_tag": True}
    compared = {**asked, "chosen": "water", "rejected": "fire"}

    for row in (judged, compared):
        found: Any = build_row(detect_mapping([row]).mapping, row)

        assert found["messages"][0]["content"] == "Translate.\n\neau"


def test_openai_preference_keeps_tools() -> None:
    row = {
        "input": {"messages": [USER], "tools": TOOLS, "parallel_tool_calls": True},
        "preferred_output": [GOOD],
        "non_preferred_output": [BAD],
    }

    assert build_row(detect_mapping([row]).mapping, row) == {**PREFERENCE, "tools": TOOLS}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"prompt": "Hi", "chosen": "Hello!", "rejected": "Hello!"}, ProblemCode.EQUAL_ANSWERS),
        ({"prompt": "Hi", "chosen": "", "rejected": "Hello!"}, ProblemCode.MISSING_ANSWER),
        ({"prompt": "", "chosen": "Hello!", "rejected": "What?"}, ProblemCode.MISSING_QUESTION),
        ({"prompt": "Hi", "chosen": [], "rejected": "What?"}, ProblemCode.NOT_TEXT),
        ({"chosen": [GOOD], "rejected": [BAD]}, ProblemCode.MISSING_QUESTION),
    ],
)
def test_incomplete_preference_is_rejected(row: dict[str, Any], code: ProblemCode) -> None:
    assert refusal("preference", row) == code


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"answers": ["Hello!"]}, ProblemCode.FEW_ANSWERS),
        ({"answers": "Hello!"}, ProblemCode.FEW_ANSWERS),
        ({"answers": ["Hello!", "What?"], "scores": [1]}, ProblemCode.BAD_SCORES),
        ({"answers": ["Hello!", "What?"], "scores": "high"}, ProblemCode.BAD_SCORES),
        ({"answers": ["Hello!", "What?"], "scores": [1, "high"]}, ProblemCode.BAD_SCORES),
        ({"answers": ["Hello!", "What?"], "scores": [1, float("nan")]}, ProblemCode.BAD_SCORES),
        ({"answers": ["Hello!", "What?"], "ranks": [1, 1]}, ProblemCode.EQUAL_ANSWERS),
    ],
)
def test_uninformative_ranking_is_rejected(row: dict[str, Any], code: ProblemCode) -> None:
    assert refusal("ranked", {"prompt": "Hi", **row}) == code


@pytest.mark.parametrize(
    ("label", "verdict"), [(True, True), ("False", False), (1, True), ("0.0", False), ("👍", True)]
)
def test_judged_answer_keeps_its_verdict(label: object, *, verdict: bool) -> None:
    pair = {"prompt": "Hi", "completion": "Hello!", "label": label}
    listed = {"messages": [USER, GOOD], "label": label}

    for row in (pair, listed):
        found = build_row(mapping("judged", row), row)

        assert found == {"messages": [USER, GOOD], "label": verdict}


def test_unknown_label_is_rejected_unless_mapped() -> None:
    row = {"prompt": "Hi", "completion": "Hello!", "label": "so so"}
    mapped = mapping("judged", row).model_copy(update={"values": {"label": {"so so": "false"}}})

    assert refusal("judged", row) == ProblemCode.BAD_LABEL
    assert build_row(mapped, row) == {"messages": [USER, GOOD], "label": False}


@pytest.mark.parametrize(
    ("row", "taught"),
    [
        (PREFERENCE, replace(LESSON, rejected=PREFERENCE["rejected"])),
        ({"messages": [USER, GOOD]}, LESSON),
        ({"messages": [USER, GOOD], "label": True}, replace(LESSON, is_good=True)),
        ({"messages": [USER, GOOD], "label": False}, replace(LESSON, is_good=False)),
        ({"text": "Once"}, TrainingExample(text="Once")),
    ],
)
def test_training_example_has_answer_and_rating_or_text(
    row: dict[str, Any], taught: TrainingExample
) -> None:
    assert to_training_example(row) == taught


def mapping(shape: ShapeName, row: dict[str, Any]) -> Mapping:
    return Mapping(shape=shape, roles={name: [name] for name in row})


def refusal(shape: ShapeName, row: dict[str, Any]) -> ProblemCode:
    with pytest.raises(UnusableRowError) as refused:
        build_row(mapping(shape, row), row)
    return refused.value.code
