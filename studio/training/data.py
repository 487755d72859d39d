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
from studio.training.templates import Message, Span, Template, TemplateRefusedError, Written

Conversation = list[Message]


class Row(Conversation):
    """A conversation that knows which row of the data set it is, counted from one."""

    number: int
    part: str


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
    longest_row: int = 0
    """Tokens of the longest row, before it was cut."""
    cut_off: int = 0
    """Dropped rows whose every answer stood behind the longest example allowed."""


def read(path: Path, part: str = "training") -> list[Conversation]:
    """Read rows of `{"messages": [...]}`, one JSON object a line.

    Raises:
        TrainingError: a line is something else.

    """
    found: list[Conversation] = []
    with path.open("rb") as lines:
        for line, text in enumerate(lines, 1):
            if text.strip():
                row = Row(_conversation(text, f"Row {len(found) + 1} of the {part} data", line))
                row.number, row.part = len(found) + 1, part
                found.append(row)
    return found


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
    truncated = tokens = longest_row = cut_off = 0
    for row, (ids, labels) in zip(rows, _labelled(rows, template, tokenizer), strict=True):
        truncated += len(ids) > max_length
        longest_row = max(longest_row, len(ids))
        # The first token is never predicted, so a label there teaches nothing.
        if any(label != IGNORED for label in labels[1:max_length]):
            columns["input_ids"].append(ids[:max_length])
            columns["labels"].append(labels[:max_length])
            kept.append(row)
            tokens += min(len(ids), max_length)
        else:
            cut_off += any(label != IGNORED for label in labels[1:])
    return Examples(
        Dataset.from_dict(columns),
        kept,
        dropped=len(rows) - len(kept),
        truncated=truncated,
        tokens=tokens,
        longest=max(map(len, columns["input_ids"]), default=0),
        longest_answer=max(map(_learnt, columns["labels"]), default=0),
        longest_row=longest_row,
        cut_off=cut_off,
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


def refuse_empty(examples: Examples, part: str, max_length: int) -> None:
    """Raise TrainingError when nothing is left of a part of the data."""
    if examples.conversations:
        return
    if not examples.cut_off:
        raise TrainingError(
            "all_labels_masked",
            f"None of the {examples.dropped:,} rows of the {part} data has an answer to learn.",
            hint="See whether the columns were mapped rightly: answers must be assistant turns.",
        )
    others = examples.dropped - examples.cut_off
    rest = f"; the other {others:,} have none" if others else ""
    raise TrainingError(
        "sequence_too_long",
        f"{examples.cut_off:,} of {examples.dropped:,} rows of the {part} data are cut at "
        f"{max_length:,} tokens, before their answers begin{rest}.",
        hint=f'Raise "Longest example": the longest row has {examples.longest_row:,} tokens.',
        longest=examples.longest_row,
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


def _conversation(text: bytes, where: str, line: int) -> Conversation:
    try:
        found = json.loads(text)
        flaw = _flaw(found)
    except ValueError as error:
        flaw = f"it is not valid JSON ({error})"
    if flaw:
        raise TrainingError(
            "bad_row",
            f"{where} (line {line} of its file) is no conversation: {flaw}.",
            hint="Mend that row, and import the data set again.",
            line=line,
        )
    return [{"role": turn["role"], "content": turn["content"]} for turn in found["messages"]]


def _flaw(row: object) -> str:
    """Return what keeps a row from being a conversation, or nothing."""
    turns = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(turns, list):
        return "it has no list of turns called messages"
    for number, turn in enumerate(turns, 1):
        for name in ("role", "content"):
            if not isinstance(turn, dict) or not isinstance(turn.get(name), str):
                return f"turn {number} has no {name} that is text"
    return ""


def _labelled(
    rows: Sequence[Conversation], template: Template, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield token ids and labels, row by row; in chunks, because tokenizers use every core."""
    for at in range(0, len(rows), _CHUNK):
        written = _written(rows[at : at + _CHUNK], template)
        batch = tokenizer(
            [conversation.text for conversation in written],
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
        )
        yield from map(_labels, batch["input_ids"], batch["offset_mapping"], written)


def _written(rows: Sequence[Conversation], template: Template) -> list[Written]:
    """Write rows as the template has it; if it refuses, find out which of them it was."""
    cut = [_until_last_answer(row) for row in rows]
    try:
        return template.write(cut)
    except TemplateRefusedError:
        for row, conversation in zip(rows, cut, strict=True):
            _refuse_unwritable(row, conversation, template)
        raise


def _refuse_unwritable(row: Conversation, cut: Conversation, template: Template) -> None:
    try:
        template.write([cut])
    except TemplateRefusedError as error:
        where = f"Row {row.number} of the {row.part} data" if isinstance(row, Row) else "A row"
        raise TrainingError(
            "bad_row",
            f"{where} is refused by the model's chat template: {error.reason}.",
            hint="Mend that row (the order of roles, for one), or choose another template.",
        ) from error


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
