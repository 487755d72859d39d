"""Rows as graders see them."""

import pytest

from studio.graders.templates import Sample, fill
from studio.intake.row_formats.tasks import to_graded_row

ASK, SAY = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be brief."}


def test_conversation_ends_before_its_last_answer_which_is_the_reference() -> None:
    row = to_graded_row({"messages": [SYSTEM, ASK, SAY, ASK, SAY]}, 7)

    assert row
    assert row.number == 7
    assert row.messages == [SYSTEM, ASK, SAY, ASK]
    assert row.item == {"reference_answer": "4", "messages": row.messages}
    question = "{{ item.messages[-1].content }} {{ item.reference_answer }}"
    assert fill(question, Sample(""), row.item) == "2 + 2? 4"


def test_better_answer_of_a_preference_is_the_reference() -> None:
    row = to_graded_row({"messages": [ASK], "chosen": [SAY], "rejected": [SYSTEM]}, 1)

    assert row
    assert (row.messages, row.item["reference_answer"]) == ([ASK], "4")


def test_task_keeps_its_columns() -> None:
    row = to_graded_row({"messages": [SYSTEM, ASK], "item": {"answer": 4, "unit": "m"}}, 1)

    assert row
    assert row.item == {"answer": 4, "unit": "m", "messages": [SYSTEM, ASK]}


@pytest.mark.parametrize(
    "row",
    [
        {"text": "A text."},
        {"messages": [ASK]},
        {"messages": [SAY]},
        {"messages": [SYSTEM, SAY]},
        {"messages": [], "item": {"answer": 4}},
        {"messages": [ASK, SAY | {"tool_calls": [{}]}, ASK], "item": {"answer": 4}},
    ],
)
def test_row_without_a_prompt_to_answer_is_none(row: dict[str, object]) -> None:
    assert to_graded_row(row, 1) is None
