"""Which columns are told to be what, and what is refused with its reason."""

from typing import Any

import pytest

from studio.errors import InvalidError
from studio.intake.shapes import detect

TURNS = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("columns", "name", "mapping"),
    [
        (
            {"instruction": "a", "context": "b", "response": "c"},
            "alpaca",
            {"instruction": "instruction", "input": "context", "output": "response"},
        ),
        (
            {"instruction": "a", "output": "c", "history": []},
            "alpaca",
            {"instruction": "instruction", "output": "output", "history": "history"},
        ),
        (
            {"Prompt": "a", "Response": "b"},
            "prompt_completion",
            {"prompt": "Prompt", "completion": "Response"},
        ),
        (
            {"input": "a", "output": "b"},
            "prompt_completion",
            {"prompt": "input", "completion": "output"},
        ),
        (
            {"context": "c", "question": "a", "answer": "b"},
            "prompt_completion",
            {"context": "context", "prompt": "question", "completion": "answer"},
        ),
        (
            {"prompt": "a", "completion": "b", "messages": TURNS},
            "messages",
            {"messages": "messages"},
        ),
        ({"conversations": TURNS}, "messages", {"messages": "conversations"}),
        (
            {"system": "s", "conversations": [{"from": "human", "value": "a"}]},
            "sharegpt",
            {"system": "system", "conversations": "conversations"},
        ),
        (
            {"messages": None, "prompt": "a", "completion": "b"},
            "prompt_completion",
            {"prompt": "prompt", "completion": "completion"},
        ),
    ],
)
def test_columns_are_told_by_the_names_people_give_them(
    columns: dict[str, Any], name: str, mapping: dict[str, str]
) -> None:
    shape = detect(columns)

    assert (shape.name, shape.mapping) == (name, mapping)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"conversations": TURNS, "chosen": {}, "rejected": {}},
            "These are preferences: each row has a chosen and a rejected answer.",
        ),
        (
            {"messages": TURNS, "label": True},
            "These are judged answers: the column label says of each whether it is good.",
        ),
        (
            {"text": "a"},
            "There are no questions and answers here, only the column text.",
        ),
        ({"prompt": "a"}, "No column can be learnt from. The file has the column prompt."),
        ({}, "No column can be learnt from. The file has no columns."),
        (
            dict.fromkeys("abcdefghijklmnop"),
            (
                "No column can be learnt from. "
                "The file has the columns a, b, c, d, e, f, g, h, i, j, k, l and 4 more."
            ),
        ),
    ],
)
def test_what_cannot_be_learnt_is_refused_with_the_reason(
    columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        detect(columns)

    assert refused.value.message == message


def test_a_label_in_words_judges_nothing() -> None:
    shape = detect({"question": "a", "answer": "b", "label": "history"})

    assert shape.unused == ["label"]
