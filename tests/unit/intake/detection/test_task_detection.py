"""Which files are read as tasks by themselves, and which are not."""

from typing import Any

import pytest

from studio.intake.detection.row_shapes import detect_mapping

USER = {"role": "user", "content": "a"}
TURNS = [USER, {"role": "assistant", "content": "b"}]
ASKED = [{"from": "human", "value": "a"}]
TOOLS = [{"name": "add"}]


@pytest.mark.parametrize(
    ("columns", "roles", "sureness"),
    [
        (
            {"messages": [USER], "reference_answer": "4", "tools": TOOLS},
            {"messages": ["messages"], "tools": ["tools"], "item": ["reference_answer"]},
            "sure",
        ),
        ({"messages": [USER]}, {"messages": ["messages"]}, "sure"),
        ({"conversations": ASKED, "n": 1}, {"messages": ["conversations"], "item": ["n"]}, "sure"),
        (
            {"messages": [USER], "label": True},
            {"messages": ["messages"], "item": ["label"]},
            "sure",
        ),
        (
            {"messages": [USER], "question": "a", "answer": "4"},
            {"messages": ["messages"], "item": ["question", "answer"]},
            "sure",
        ),
        (
            {"prompt": [USER], "reward_model": {"truth": 4}, "data_source": "sums"},
            {"messages": ["prompt"], "item": ["reward_model", "data_source"]},
            "likely",
        ),
        ({"prompt": "a"}, {"prompt": ["prompt"]}, "likely"),
        (
            {"source": "s", "Problem": "a", "ground_truth": "b", "level": 3, "tests": ["x"]},
            {"prompt": ["Problem"], "item": ["source", "ground_truth", "level", "tests"]},
            "likely",
        ),
        (
            {"question": "a", "context": "c", "rubric": {"points": 2}},
            {"prompt": ["context", "question"], "item": ["rubric"]},
            "likely",
        ),
        (
            {"instruction": "a", "input": "b", "checker": "c"},
            {"prompt": ["instruction", "input"], "item": ["checker"]},
            "likely",
        ),
    ],
)
def test_tasks_are_recognised(
    columns: dict[str, Any], roles: dict[str, list[str]], sureness: str
) -> None:
    found = detect_mapping([columns])

    assert (found.mapping.shape, found.kind) == ("task", "task")
    assert (found.mapping.roles, found.sureness, found.unused) == (roles, sureness, [])
    assert found.evidence[1] == "1 of 1 sampled rows are usable as tasks without answers."
    assert [question[:31] for question in found.questions] == (
        [] if "messages" in roles else ["No column holds answers to lear"]
    )


@pytest.mark.parametrize(
    ("columns", "shape"),
    [
        ({"messages": TURNS, "reference_answer": "4"}, "messages"),
        ({"messages": [USER], "chosen": "b", "rejected": "c"}, "preference"),
        ({"messages": TURNS, "label": True}, "judged"),
        ({"prompt": [USER], "solution": "4"}, "prompt_completion"),
        ({"question": "a", "answer": "4"}, "prompt_completion"),
        ({"prompt": "a", "reply": "Paris"}, "prompt_completion"),
        ({"question": "a", "answers": ["4"]}, "text"),
        ({"question": "a", "score": 0.5}, "regression"),
        ({"question": "a", "text": "b"}, "text"),
        ({"input": "a"}, "text"),
        ({"prompt": 3, "notes": "b"}, "text"),
        ({"text": "a"}, "text"),
    ],
)
def test_other_files_are_not(columns: dict[str, Any], shape: str) -> None:
    assert detect_mapping([columns]).mapping.shape == shape


@pytest.mark.parametrize(("asked", "shape"), [(9, "task"), (8, "messages")])
def test_nearly_all_rows_must_end_with_the_user(asked: int, shape: str) -> None:
    rows = [{"messages": [USER] if i < asked else TURNS, "n": i} for i in range(10)]

    assert detect_mapping(rows).mapping.shape == shape


def test_columns_of_the_split_and_of_the_system_prompt_are_not_for_graders() -> None:
    rows = [{"prompt": "a", "system": "s", "split": part, "n": 1} for part in ("train", "test")]
    found = detect_mapping(rows)

    assert found.mapping.roles == {"system": ["system"], "prompt": ["prompt"], "item": ["n"]}
    assert found.mapping.split.column == "split"


def test_columns_that_only_some_rows_have_are_for_graders_too() -> None:
    more: tuple[dict[str, Any], ...] = ({}, {"a": 1}, {"b": None})
    rows = [{"messages": [USER], **columns} for columns in more]

    assert detect_mapping(rows).mapping.roles["item"] == ["a", "b"]
