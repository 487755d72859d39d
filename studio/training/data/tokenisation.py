"""Turn rows into examples: tokenise, truncate, count and batch them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, label_rows
from studio.training.data.rows import TrainingRow


@dataclass(frozen=True, slots=True)
class Examples:
    """Tokenised rows, and counts of what was left out."""

    data: Dataset
    """Columns `input_ids` and `labels`."""
    rows: list[TrainingRow]
    dropped: int
    """Rows with nothing to train on after truncation."""
    truncated: int
    tokens: int
    longest: int = 0
    """Tokens of the longest example."""
    longest_answer: int = 0
    """Most trained tokens in one example."""
    longest_row: int = 0
    """Tokens of the longest row, before truncation."""
    cut_off: int = 0
    """Dropped rows whose answers all begin after the maximum sequence length."""
    packs: Sequence[Sequence[int]] | None = None
    """Which rows share an example, by index; None if rows are not packed."""

    @property
    def count(self) -> int:
        """Number of examples the model reads."""
        return len(self.rows if self.packs is None else self.packs)


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise, label and truncate the rows; drop those with nothing left to train on."""
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": []}
    kept_rows: list[TrainingRow] = []
    truncated = tokens = longest_row = cut_off = 0
    for row, labelled in zip(rows, label_rows(rows, template, tokenizer), strict=True):
        ids, labels = labelled.ids, labelled.labels
        truncated += len(ids) > max_length
        longest_row = max(longest_row, len(ids))
        # The first token is never predicted, so its label has no effect.
        if any(label != IGNORE_INDEX for label in labels[1:max_length]):
            columns["input_ids"].append(ids[:max_length])
            columns["labels"].append(labels[:max_length])
            kept_rows.append(row)
            tokens += min(len(ids), max_length)
        else:
            cut_off += any(label != IGNORE_INDEX for label in labels[1:])
    return Examples(
        Dataset.from_dict(columns),
        kept_rows,
        dropped=len(rows) - len(kept_rows),
        truncated=truncated,
        tokens=tokens,
        longest=max(map(len, columns["input_ids"]), default=0),
        longest_answer=max(map(_count_trained, columns["labels"]), default=0),
        longest_row=longest_row,
        cut_off=cut_off,
    )


def row_tensors(data: Dataset) -> list[dict[str, torch.Tensor]]:
    """Return the rows as views into the dataset's memory, without copying or decoding."""
    columns = {name: _tensor_views(data, name) for name in ("input_ids", "labels")}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True, slots=True)
class Collator:
    """Makes a batch of examples, padded on the right to the longest of them.

    For packed rows, upstream separates them by position ids that restart at zero, and only if there
    is no attention mask. Padding is then one more row, and `tokens` counts the others.
    """

    pad_token_id: int

    def __call__(self, rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        ids = [row["input_ids"] for row in rows]
        labels = [row["labels"] for row in rows]
        lengths = torch.tensor([len(row) for row in ids])
        batch = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
        }
        indices = torch.arange(int(lengths.max()))
        if "position_ids" not in rows[0]:
            return batch | {"attention_mask": (indices < lengths[:, None]).long()}
        positions = (indices - lengths[:, None]).clamp(min=0)
        for padded, row in zip(positions, rows, strict=True):
            padded[: len(row["position_ids"])] = row["position_ids"]
        return batch | {"position_ids": positions, "tokens": lengths}


def refuse_empty(examples: Examples, part: str, max_length: int) -> None:
    """Raise a TrainingError if a part of the data has no rows left."""
    if examples.rows:
        return
    if not examples.cut_off:
        raise TrainingError(
            "all_labels_masked",
            f"None of the {examples.dropped:,} rows of the {part} data has an answer to train on.",
            hint="Check the column mapping: answers must be assistant turns.",
        )
    others = examples.dropped - examples.cut_off
    rest = f"; the other {others:,} have no answer" if others else ""
    raise TrainingError(
        "sequence_too_long",
        f"{examples.cut_off:,} of {examples.dropped:,} rows of the {part} data are truncated at "
        f"{max_length:,} tokens, before their answers begin{rest}.",
        hint=f'Raise "Max sequence length": the longest row has {examples.longest_row:,} tokens.',
        longest=examples.longest_row,
    )


def _count_trained(labels: Sequence[int]) -> int:
    return len(labels) - labels.count(IGNORE_INDEX)


def _tensor_views(data: Dataset, name: str) -> tuple[torch.Tensor, ...]:
    rows = data.data.column(name).combine_chunks()
    # Arrow's memory must not be written to, and nothing here writes to it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        values = torch.from_numpy(rows.flatten().to_numpy())
    return torch.split(values, rows.value_lengths().to_pylist())
