import json
import lzma
import re
from pathlib import Path
from random import Random

import pytest

from studio import starter
from tests.tools.starter import build, instruction_rows
from tests.tools.starter.chat import Message, Row

TRAIN = list(instruction_rows.generate_rows("train"))
VALIDATION = list(instruction_rows.generate_rows("validation"))


def test_train_and_validation_have_expected_row_counts() -> None:
    assert (len(TRAIN), len(VALIDATION)) == (2690, 270)


def test_generated_rows_are_deterministic() -> None:
    assert [
        list(instruction_rows.generate_rows("train")),
        list(instruction_rows.generate_rows("validation")),
    ] == [
        TRAIN,
        VALIDATION,
    ]


def test_splits_share_no_question_and_answer() -> None:
    assert {_ending(row) for row in TRAIN} & {_ending(row) for row in VALIDATION} == set()


def test_rows_are_unique() -> None:
    every = TRAIN + VALIDATION

    assert len({_ending(row) for row in every}) == len(every)


def test_user_and_assistant_turns_alternate_and_assistant_is_last() -> None:
    spoken = [[m["role"] for m in _spoken(row)] for row in TRAIN + VALIDATION]

    assert spoken == [["user", "assistant"] * (len(roles) // 2) for roles in spoken]


def test_messages_have_no_empty_text_or_placeholders() -> None:
    texts = [message["content"] for row in TRAIN + VALIDATION for message in row["messages"]]

    assert [text for text in texts if not text.strip() or {"{", "}"} & set(text)] == []


def test_one_row_in_six_has_several_turns() -> None:
    longer = [row for row in TRAIN if len(_asked(row)) > 1]

    assert round(len(longer) / len(TRAIN), 2) == 0.17


def test_one_row_in_eight_has_system_prompt() -> None:
    prompted = [row for row in TRAIN if row["messages"][0]["role"] == "system"]

    assert 0.1 < len(prompted) / len(TRAIN) < 0.15


@pytest.mark.parametrize("make", instruction_rows.TASK_COUNTS, ids=lambda make: str(make.__name__))
def test_each_task_kind_has_more_rows_than_needed(
    make: instruction_rows.RowMaker,
) -> None:
    rng = Random(1)  # noqa: S311 -- chooses examples, guards nothing

    found = {_ending(make(rng)) for _ in range(5000)}

    assert len(found) > 1.5 * instruction_rows.TASK_COUNTS[make]


def test_validation_words_all_occur_in_training() -> None:
    train, validation = (
        {word for row in split for word in _words(row)} for split in (TRAIN, VALIDATION)
    )

    assert validation - train == set()


def test_written_files_have_one_row_per_line(tmp_path: Path) -> None:
    starter.write_rows(tmp_path)

    written = [_read(tmp_path / name) for name in ("train.jsonl", "validation.jsonl")]
    assert written == [TRAIN, VALIDATION]


def test_shipped_data_matches_built_data() -> None:
    built = build.content()
    shipped = {name: lzma.decompress(starter.data_path(name).read_bytes()) for name in built}

    assert shipped == built


def _spoken(row: Row) -> list[Message]:
    return [message for message in row["messages"] if message["role"] != "system"]


def _asked(row: Row) -> list[str]:
    return [message["content"] for message in row["messages"] if message["role"] == "user"]


def _words(row: Row) -> list[str]:
    return [word for m in row["messages"] for word in re.findall(r"[A-Za-z]+", m["content"])]


def _ending(row: Row) -> tuple[str, str]:
    question, answer = row["messages"][-2:]
    return question["content"], answer["content"]


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
