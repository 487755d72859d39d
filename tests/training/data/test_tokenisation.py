"""How rows become examples, and which of them do not."""

from pathlib import Path

import pytest
import torch

from studio.errors import TrainingError
from studio.training.data import tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow, read_rows, split_rows
from tests.training import tiny


def conversations(count: int) -> list[TrainingRow]:
    return [TrainingRow(messages=row["messages"]) for row in tiny.rows()[:count]]


def tokenised(rows: list[TrainingRow], max_length: int = 100) -> tokenisation.Examples:
    reader = tiny.tokenizer()
    return tokenisation.tokenise(rows, ChatTemplate(reader), reader, max_length)


def test_rows_without_answer_within_limit_are_dropped_and_counted() -> None:
    unanswered = TrainingRow(messages=[{"role": "user", "content": "Anybody?"}])
    endless = TrainingRow(
        messages=[
            {"role": "user", "content": "why? " * 200},
            {"role": "assistant", "content": "So."},
        ]
    )

    examples = tokenised([*conversations(3), unanswered, endless])

    assert (len(examples.rows), examples.dropped, examples.truncated) == (3, 2, 1)


def test_long_rows_are_truncated_and_counted() -> None:
    whole = tokenised(conversations(2))
    length = len(tokenisation.row_tensors(whole.data)[0]["labels"])

    cut = tokenised(conversations(2), length - 2)

    assert (cut.truncated, cut.dropped, cut.tokens) == (2, 0, 2 * (length - 2))


def test_same_seed_gives_same_validation_rows() -> None:
    rows = conversations(20)

    assert split_rows(rows, 0.1, seed=1) == split_rows(rows, 0.1, seed=1)
    assert [len(part) for part in split_rows(rows, 0.1, seed=1)] == [18, 2]
    assert split_rows(rows, 0.1, seed=1) != split_rows(rows, 0.1, seed=2)


def test_validation_split_has_at_least_one_row() -> None:
    assert [len(part) for part in split_rows(conversations(3), 0.01, seed=1)] == [2, 1]


def test_splitting_single_row_is_rejected() -> None:
    with pytest.raises(TrainingError) as caught:
        split_rows(conversations(1), 0.1, seed=1)

    assert caught.value.code == "too_few_rows"


def test_invalid_row_error_names_row_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": []}\n{"text": 1}\n', encoding="utf-8")

    with pytest.raises(TrainingError) as caught:
        read_rows(path)

    assert (caught.value.code, caught.value.message) == (
        "bad_row",
        (
            "Row 2 of the training data (line 2 of its file) is not a conversation: it has no "
            "list of turns called messages."
        ),
    )


def test_batches_are_padded_on_right() -> None:
    short = {"input_ids": torch.tensor([5]), "labels": torch.tensor([5])}
    long = {"input_ids": torch.tensor([7, 8]), "labels": torch.tensor([-100, 8])}

    batch = tokenisation.Collator(pad_token_id=9)([short, long])

    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[5, 9], [7, 8]],
        "labels": [[5, -100], [-100, 8]],
        "attention_mask": [[1, 0], [1, 1]],
    }
