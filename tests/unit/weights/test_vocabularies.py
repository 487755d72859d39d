"""The tokens of a student and its teacher, as their files show them."""

import json
from pathlib import Path
from typing import Any

import pytest

from studio.weights import vocabularies
from studio.weights.vocabularies import Vocabulary

TABLE = {"a": 0, "b": 1, "c": 2}
SAME = "The teacher has another tokenizer than the base model"


def write(folder: Path, vocab: Any, **config: Any) -> Path:  # noqa: ANN401 -- JSON
    folder.mkdir(exist_ok=True)
    added = [{"id": 3, "content": "<end>", "special": True}]
    content = {"model": {"vocab": vocab}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("vocab", [TABLE, [["a", -1.0], ["b", -2.0], ["c", -3.0]]])
@pytest.mark.parametrize("end", ["<end>", {"content": "<end>", "lstrip": False}])
def test_tables_and_lists_of_tokens_are_read(vocab: Any, end: Any, tmp_path: Path) -> None:  # noqa: ANN401 -- JSON
    found = vocabularies.read(write(tmp_path, vocab, eos_token=end, bos_token=None))

    assert found == Vocabulary(TABLE | {"<end>": 3}, {"eos_token": "<end>"})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 1}', '{"model": {"vocab": []}}'])
def test_files_that_show_no_tokens_are_unknown(content: str, tmp_path: Path) -> None:
    assert vocabularies.read(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    assert vocabularies.read(tmp_path) is None


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    before = vocabularies.read(write(tmp_path, TABLE))
    after = vocabularies.read(write(tmp_path, TABLE | {"d": 4}))

    assert before != after


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"a": 0, "b": 1}, f"{SAME}: it lacks 1 of its 3 tokens, such as 'c'."),
        ({**TABLE, "d": 3}, f"{SAME}: 4 tokens instead of 3, such as 'd'."),
        (
            {"a": 0, "b": 2, "c": 1},
            f"{SAME}: the number of 'b' is 2 instead of 1.",
        ),
    ],
)
def test_difference_is_said(teacher: dict[str, int], message: str) -> None:
    problem = vocabularies.find_problem(Vocabulary(TABLE), Vocabulary(teacher))

    assert problem is not None
    assert (problem.message, problem.hint) == (message, vocabularies.HINT)


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        ({}, {}, ""),
        ({"eos_token": "a"}, {}, ""),
        ({"eos_token": "a"}, {"eos_token": "a", "bos_token": "b"}, ""),
        (
            {"eos_token": "a"},
            {"eos_token": "b"},
            "The teacher ends a text with b, but the base model with a.",
        ),
        (
            {"bos_token": "a", "eos_token": "a"},
            {"bos_token": "c", "eos_token": "b"},
            "The teacher begins a text with c, but the base model with a.",
        ),
    ],
)
def test_tokens_that_begin_and_end_texts_must_be_the_same(
    student: dict[str, str], teacher: dict[str, str], message: str
) -> None:
    problem = vocabularies.find_problem(Vocabulary(TABLE, student), Vocabulary(TABLE, teacher))

    assert (problem.message if problem else "") == message
