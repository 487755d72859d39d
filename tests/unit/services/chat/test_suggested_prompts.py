"""Which rows a chat suggests, and what it expects as their answers."""

import json
from typing import Any

import pytest
from sqlmodel import Session

from studio.db.tables import DatasetVersion, Run
from studio.protocols.events import Sampled
from studio.services.chat import suggested_prompts
from studio.services.runs import attempts
from studio.settings import Settings
from tests.support.factories import make_finished_run

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "And two plus two?"},
    {"role": "assistant", "content": "Four."},
]


@pytest.fixture
def run(db: Session) -> Run:
    return make_finished_run(db, samples={"prompts": 1})


def validate_on(db: Session, settings: Settings, kind: str, *rows: dict[str, Any]) -> None:
    """Give the starter data set validation rows of its own."""
    version = db.get_one(DatasetVersion, 1)
    version.kind, version.validation_rows = kind, len(rows)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (settings.datasets / "1" / "1" / "validation.jsonl").write_text(text)


def test_conversation_is_suggested_up_to_its_last_answer(
    db: Session, settings: Settings, run: Run
) -> None:
    validate_on(db, settings, "conversation", {"messages": TURNS})
    (prompt,) = suggested_prompts.list_prompts(db, run, settings.datasets)

    assert (prompt.text, prompt.expected) == ("And two plus two?", "Four.")
    assert prompt.messages == TURNS[:-1]


def test_only_answers_that_are_trained_on_are_expected(
    db: Session, settings: Settings, run: Run
) -> None:
    unweighted = [*TURNS[:-1], {**TURNS[-1], "weight": 0}]
    validate_on(db, settings, "conversation", {"messages": unweighted})
    (prompt,) = suggested_prompts.list_prompts(db, run, settings.datasets)

    assert (prompt.text, prompt.expected) == ("Hello?", "Hi.")


def test_chosen_answer_of_preference_is_expected(db: Session, settings: Settings, run: Run) -> None:
    row = {"messages": TURNS[1:2], "chosen": [TURNS[2]], "rejected": [TURNS[4]]}
    validate_on(db, settings, "preference", row)
    (prompt,) = suggested_prompts.list_prompts(db, run, settings.datasets)

    assert (prompt.text, prompt.expected) == ("Hello?", "Hi.")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"reference_answer": 4}, "4"),
        ({"reference_answer": {"sum": [4, True]}}, '{"sum": [4, true]}'),
        ({"level": 1}, ""),
    ],
)
def test_task_is_suggested_with_the_answer_that_graders_read(
    db: Session, settings: Settings, run: Run, item: dict[str, Any], expected: str
) -> None:
    validate_on(db, settings, "task", {"messages": TURNS[:-1], "item": item})
    (prompt,) = suggested_prompts.list_prompts(db, run, settings.datasets)

    assert (prompt.text, prompt.expected) == ("And two plus two?", expected)


def test_rows_that_use_tools_are_not_suggested(db: Session, settings: Settings, run: Run) -> None:
    result = {"role": "tool", "content": "4", "tool_call_id": "1"}
    tools = {"messages": [*TURNS[:4], result, TURNS[4]]}
    validate_on(db, settings, "conversation", tools, {"messages": TURNS, "tools": [{}]})

    assert suggested_prompts.list_prompts(db, run, settings.datasets) == []


def test_text_is_suggested_up_to_its_middle(db: Session, settings: Settings, run: Run) -> None:
    validate_on(db, settings, "text", {"text": "Once upon a time there was a fox."})
    (prompt,) = suggested_prompts.list_prompts(db, run, settings.datasets)

    assert (prompt.text, prompt.expected) == ("Once upon a", "time there was a fox.")
    assert suggested_prompts.trains_on_text(db, run)


def test_three_rows_are_suggested(db: Session, settings: Settings, run: Run) -> None:
    validate_on(db, settings, "conversation", *[{"messages": TURNS}] * 5)

    assert len(suggested_prompts.list_prompts(db, run, settings.datasets)) == 3
    assert not suggested_prompts.trains_on_text(db, run)


def test_sample_prompts_replace_deleted_rows(db: Session, settings: Settings, run: Run) -> None:
    told = [
        Sampled(
            stage=stage, step=step, position=0, prompt="Who?", reference="Me.", answer="No one."
        )
        for stage, step in (("before", 0), ("after", 10))
    ]
    attempts.apply_events(db, run, told, 2000)
    (settings.datasets / "1" / "1" / "train.jsonl").unlink()
    (prompt,) = suggested_prompts.list_prompts(db, run, settings.datasets)

    assert (prompt.text, prompt.expected) == ("Who?", "Me.")
