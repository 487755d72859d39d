"""Read pairs of texts, and collate them into batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from studio.training.data import prompt_answer, text_pairs
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow
from studio.training.data.tokenisation import Collator, Examples

COLUMNS = ("input_ids", "labels", "sizes", "keys", "score")

Batch = dict[str, Any]


def tokenise(
    rows: Sequence[TrainingRow],
    _template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise each text of each row by itself, as its tokenizer writes one; cut it at the end."""
    texts = [text for row in rows for text in row.pair]
    whole = prompt_answer.tokenise_texts(texts, tokenizer)
    ids = iter(prompt_answer.cut_texts(texts, tokenizer, max_length))
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in rows:
        own = [next(ids) for _text in row.pair]
        joined = [token for one in own for token in one]
        # Examples have a label per token; these are not read.
        values = (
            joined,
            joined,
            [*map(len, own)],
            [*map(text_pairs.text_key, row.pair)],
            [_score(row)],
        )
        for name, value in zip(COLUMNS, values, strict=True):
            columns[name].append(value)
    sizes = [size for own in columns["sizes"] for size in own]
    return Examples(
        Dataset.from_dict(columns),
        list(rows),
        dropped=0,
        truncated=_count_truncated(rows, whole, max_length),
        tokens=sum(sizes),
        longest=max(sizes, default=0),
        longest_answer=1,
        longest_row=max(map(len, whole), default=0),
    )


def _count_truncated(
    rows: Sequence[TrainingRow], whole: Sequence[list[int]], max_length: int
) -> int:
    """Return how many rows have a text that is cut."""
    sizes = iter(whole)
    return sum(max(len(next(sizes)) for _text in row.pair) > max_length for row in rows)


def _score(row: TrainingRow) -> float:
    return float("nan") if row.score is None else row.score


@dataclass(frozen=True, slots=True)
class PairCollator(Collator):
    """Makes a batch of rows: all first texts, then all second ones, then the negatives.

    `owners` has the row of each negative, `keys` a number for each text, `score` one for each row.
    """

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> Batch:
        split = [torch.split(row["input_ids"], row["sizes"].tolist()) for row in rows]
        keys = [row["keys"].tolist() for row in rows]
        places = [(row, 0) for row in range(len(rows))] + [(row, 1) for row in range(len(rows))]
        negatives = [(row, place) for row, own in enumerate(split) for place in range(2, len(own))]
        places += negatives
        ids = [split[row][place] for row, place in places]
        # A dataclass with slots has no `super()` without arguments.
        batch = Collator.__call__(self, [{"input_ids": one, "labels": one} for one in ids])
        del batch["labels"]
        return batch | {
            "owners": torch.tensor([row for row, _place in negatives], dtype=torch.long),
            "keys": torch.tensor([keys[row][place] for row, place in places]),
            "score": torch.cat([row["score"] for row in rows]),
        }
