"""Read a query with each of its texts, and collate them into batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from studio.training.data import text_pairs
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow
from studio.training.data.tokenisation import Collator, Examples

COLUMNS = ("input_ids", "labels", "types", "target", "key")

Batch = dict[str, Any]


def tokenise(
    rows: Sequence[TrainingRow],
    _template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise the first text of each row with each of its others: each is an example.

    The first of these matches; or, with a score, that is to be learned.
    """
    examples = [
        (row, text, float(place == 0) if row.score is None else row.score)
        for row in rows
        for place, text in enumerate(row.pair[1:])
    ]
    pairs = [(row.pair[0], text) for row, text, _target in examples]
    sizes, ids, types = text_pairs.tokenise_pairs(pairs, tokenizer, max_length)
    keys = [text_pairs.text_key(first) for first, _text in pairs]
    columns = {
        "input_ids": ids,
        # Examples have a label per token; these are not read.
        "labels": ids,
        "types": types,
        "target": [[target] for _row, _text, target in examples],
        "key": [[key] for key in keys],
    }
    return Examples(
        Dataset.from_dict(columns),
        [row for row, _text, _target in examples],
        dropped=0,
        truncated=sum(size > max_length for size in sizes),
        tokens=sum(map(len, ids)),
        longest=max(map(len, ids), default=0),
        longest_answer=1,
        longest_row=max(sizes, default=0),
    )


@dataclass(frozen=True, slots=True)
class ExampleCollator(Collator):
    """Makes a batch of examples, with their token types, targets and queries."""

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> Batch:
        # A dataclass with slots has no `super()` without arguments.
        batch = Collator.__call__(self, rows)
        del batch["labels"]
        return batch | {
            "types": pad_sequence([row["types"] for row in rows], batch_first=True),
            "target": torch.cat([row["target"] for row in rows]).float(),
            "key": torch.cat([row["key"] for row in rows]),
        }
