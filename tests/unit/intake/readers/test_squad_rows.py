"""Questions of SQuAD become rows, in its nested form and in the flat one of the hub."""

import json
from pathlib import Path
from typing import Any

import pytest

from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.files.limits import Limits
from tests.unit.intake.conftest import Convert

CONTEXT = "Ada wrote the first program in 1843."
SPANS = [{"text": "Ada", "answer_start": 0}, {"text": "Ada wrote", "answer_start": 0}]
QUESTIONS = [
    {"id": "1", "question": "Who wrote it?", "answers": SPANS},
    {"id": "2", "question": "When?", "answers": [{"text": "1843", "answer_start": 31}]},
    {"id": "3", "question": "Why?", "answers": [], "is_impossible": True},
]
ARTICLE = {"title": "Ada", "paragraphs": [{"context": CONTEXT, "qas": QUESTIONS}] * 2}
NESTED: list[dict[str, Any]] = [
    {"data": [ARTICLE], "version": "1.1"},
    {"version": "v2.0", "data": [ARTICLE]},
]


@pytest.mark.parametrize("file", NESTED)
def test_nested_squad_questions_become_rows_with_context(
    bring: Convert, file: dict[str, Any]
) -> None:
    result = bring(json.dumps(file), "train.json")

    answers = [[turn["content"] for turn in turns] for turns in result.conversations]
    expected = [[f"{CONTEXT}\n\nWho wrote it?", "Ada"], [f"{CONTEXT}\n\nWhen?", "1843"]]
    assert answers == expected * 2
    assert result.converted.problems[0].rows == [3, 6]


def test_flat_squad_row_uses_first_answer(bring: Convert) -> None:
    spans = {"text": ["Ada", "Ada wrote"], "answer_start": [0, 0]}
    row = {"context": CONTEXT, "question": "Who wrote it?", "answers": spans}
    empty = row | {"answers": {"text": [], "answer_start": []}}

    result = bring(f"{json.dumps(row)}\n{json.dumps(empty)}\n")

    assert [turns[1]["content"] for turns in result.conversations] == ["Ada"]
    assert result.problems[0] == ("missing_answer", 1, [2])


def test_squad_detection_asks_about_first_answer(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(NESTED[0]))

    seen = inspect_file(SourceFile(path=path, filename=path.name), Limits()).detected

    assert seen.mapping.roles == {
        "context": ["context"],
        "prompt": ["question"],
        "completion": ["answers"],
    }
    assert seen.sureness == "likely"
    (question,) = seen.questions
    assert question.startswith(
        "If a question has several answers, the first is used; questions without an answer"
    )
