"""Rows become examples: conversations written as tokens, with labels on the answers alone."""

import json
import random
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.templates import Message, Span, Template, Written

Conversation = list[Message]

IGNORED = -100
"""The label of a token that is read but not learnt."""

_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Examples:
    """Tokenised conversations, and what had to be left out."""

    data: Dataset
    """Columns `input_ids` and `labels`."""
    conversations: list[Conversation]
    dropped: int
    """Rows with nothing to learn in what was kept of them."""
    truncated: int
    tokens: int
    longest: int = 0
    """Tokens of the longest example."""
    longest_answer: int = 0
    """Most tokens to learn in one example."""


def read(path: Path) -> list[Conversation]:
    """Read rows of `{"messages": [...]}`, one JSON object a line.

    Raises:
        TrainingError: a line is something else.

    """
    with path.open(encoding="utf-8") as lines:
        return [_conversation(line, number) for number, line in enumerate(lines, 1) if line.strip()]


def split(
    rows: Sequence[Conversation], share: float, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """Hold back a share of the rows, the same ones for the same seed, and at least one.

    Raises:
        TrainingError: there are not two rows, one to learn and one to measure by.

    """
    count = max(1, round(len(rows) * share))
    if count >= len(rows):
        raise TrainingError(
            "too_few_rows",
            f"The data set has {len(rows)} usable rows; training and validation need one each.",
            hint="Add rows, or a validation part.",
        )
    held = set(random.Random(seed).sample(range(len(rows)), count))  # noqa: S311 -- no secret
    kept = [row for i, row in enumerate(rows) if i not in held]
    return kept, [rows[i] for i in sorted(held)]


def tokenise(
    rows: Sequence[Conversation],
    template: Template,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Write, tokenise, label and cut the rows; drop those that leave nothing to learn."""
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": []}
    kept: list[Conversation] = []
    truncated = tokens = 0
    for row, (ids, labels) in zip(rows, _labelled(rows, template, tokenizer), strict=True):
        truncated += len(ids) > max_length
        # The first token is never predicted, so a label there teaches nothing.
        if any(label != IGNORED for label in labels[1:max_length]):
            columns["input_ids"].append(ids[:max_length])
            columns["labels"].append(labels[:max_length])
            kept.append(row)
            tokens += min(len(ids), max_length)
    return Examples(
        Dataset.from_dict(columns),
        kept,
        dropped=len(rows) - len(kept),
        truncated=truncated,
        tokens=tokens,
        longest=max(map(len, columns["input_ids"]), default=0),
        longest_answer=max(map(_learnt, columns["labels"]), default=0),
    )


def tensors(data: Dataset) -> list[dict[str, torch.Tensor]]:
    """Return the rows as views into the data set's own memory: nothing is copied or decoded."""
    columns = {name: _views(data, name) for name in ("input_ids", "labels")}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True, slots=True)
class Collator:
    """Makes a batch of rows, padded on the right to the longest of them."""

    pad_token_id: int

    def __call__(self, rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        ids = [row["input_ids"] for row in rows]
        labels = [row["labels"] for row in rows]
        lengths = torch.tensor([len(row) for row in ids])
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            "attention_mask": (torch.arange(int(lengths.max())) < lengths[:, None]).long(),
        }


def refuse_empty(examples: Examples, part: str) -> None:
    """Raise TrainingError when nothing is left of a part of the data."""
    if not examples.conversations:
        raise TrainingError(
            "nothing_to_learn",
            f"No row of the {part} data has an answer within the longest example.",
            hint='Raise "Longest example", or look whether the rows have assistant turns.',
        )


def _learnt(labels: Sequence[int]) -> int:
    return len(labels) - labels.count(IGNORED)


def _views(data: Dataset, name: str) -> tuple[torch.Tensor, ...]:
    rows = data.data.column(name).combine_chunks()
    # Arrow hands out memory that must not be written to, and nobody does.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        values = torch.from_numpy(rows.flatten().to_numpy())
    return torch.split(values, rows.value_lengths().to_pylist())


def _conversation(line: str, number: int) -> Conversation:
    try:
        messages = json.loads(line)["messages"]
        return [{"role": message["role"], "content": message["content"]} for message in messages]
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            "bad_row", f"Line {number} of the data is no conversation.", hint="Import it again."
        ) from error


def _labelled(
    rows: Sequence[Conversation], template: Template, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield token ids and labels, row by row; in chunks, because tokenizers use every core."""
    for at in range(0, len(rows), _CHUNK):
        written = template.write([_until_last_answer(row) for row in rows[at : at + _CHUNK]])
        batch = tokenizer(
            [conversation.text for conversation in written],
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
        )
        yield from map(_labels, batch["input_ids"], batch["offset_mapping"], written)


def _until_last_answer(row: Conversation) -> Conversation:
    """Cut what follows the last answer: it teaches nothing."""
    last = max((i for i, turn in enumerate(row) if turn["role"] == "assistant"), default=-1)
    return row[: last + 1]


def _labels(ids: list[int], offsets: list[Span], written: Written) -> tuple[list[int], list[int]]:
    labels = [IGNORED] * len(ids)
    for start, end in written.answers:
        first = bisect_right(offsets, start, key=lambda offset: offset[1])
        last = bisect_left(offsets, end, key=lambda offset: offset[0])
        labels[first:last] = ids[first:last]
    return ids, labels
