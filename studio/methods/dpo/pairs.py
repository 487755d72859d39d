"""Tokenise pairs of answers, and collate them into batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, label_rows
from studio.training.data.rows import TrainingRow, chosen_answer, rejected_answer
from studio.training.data.tokenisation import Collator, Examples

COLUMNS = ("input_ids", "labels", "rejected_ids", "rejected_labels")


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise, label and truncate both answers of each row.

    Pairs whose answers are equal after truncation are dropped: the model can learn nothing from
    them, and upstream would count them as not preferred.

    Raises:
        TrainingError: a row is no preference, or no pair is left.

    """
    _refuse_other_rows(rows)
    chosen = label_rows([chosen_answer(row) for row in rows], template, tokenizer)
    rejected = label_rows([rejected_answer(row) for row in rows], template, tokenizer)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    kept: list[TrainingRow] = []
    truncated = cut_off = longest_row = 0
    for row, *pair in zip(rows, chosen, rejected, strict=True):
        length = max(len(answer.ids) for answer in pair)
        truncated += length > max_length
        longest_row = max(longest_row, length)
        if not _differ(pair, max_length):
            cut_off += _differ(pair, length)
            continue
        kept.append(row)
        for name, values in zip(COLUMNS, _cut(pair, max_length), strict=True):
            columns[name].append(values)
    if not kept:
        raise _nothing_left(rows, cut_off, longest_row, max_length)
    ids = [*columns["input_ids"], *columns["rejected_ids"]]
    labels = [*columns["labels"], *columns["rejected_labels"]]
    return Examples(
        Dataset.from_dict(columns),
        kept,
        dropped=len(rows) - len(kept),
        truncated=truncated,
        tokens=sum(map(len, ids)),
        longest=max(map(len, ids)),
        longest_answer=max(len(answer) - answer.count(IGNORE_INDEX) for answer in labels),
        longest_row=longest_row,
        cut_off=cut_off,
    )


@dataclass(frozen=True, slots=True)
class PairCollator(Collator):
    """Makes a batch of pairs: all chosen answers, then all rejected ones."""

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        rejected = [
            {"input_ids": row["rejected_ids"], "labels": row["rejected_labels"]} for row in rows
        ]
        chosen = [{name: row[name] for name in ("input_ids", "labels")} for row in rows]
        # A dataclass with slots has no `super()` without arguments.
        batch = Collator.__call__(self, [*chosen, *rejected])
        if "reference" in rows[0]:
            batch["reference"] = torch.stack([row["reference"] for row in rows]).T.flatten()
        return batch


def _cut(pair: Sequence[LabelledRow], length: int) -> list[list[int]]:
    """Return the ids and labels of both answers, in the order of the columns."""
    return [part[:length] for answer in pair for part in (answer.ids, answer.labels)]


def _differ(pair: Sequence[LabelledRow], length: int) -> bool:
    """Whether both answers have a trained token within a length, and are not equal there."""
    ids, labels, other_ids, other_labels = _cut(pair, length)
    # The first token is never predicted, so its label has no effect.
    trained = (any(label != IGNORE_INDEX for label in one[1:]) for one in (labels, other_labels))
    return all(trained) and ids != other_ids


def _refuse_other_rows(rows: Sequence[TrainingRow]) -> None:
    for row in rows:
        if not row.rejected:
            raise TrainingError(
                "bad_row",
                f"{row.location} has no pair of answers to compare.",
                hint="Choose a dataset of preferences, or learn from answers.",
            )


def _nothing_left(
    rows: Sequence[TrainingRow], cut_off: int, longest_row: int, max_length: int
) -> TrainingError:
    part = rows[0].part if rows else "training"
    if not cut_off:
        return TrainingError(
            "all_labels_masked",
            f"In all {len(rows):,} rows of the {part} data, the two answers are equal.",
            hint="Check the column mapping: one column must hold the better answers, and another "
            "the worse ones.",
        )
    return TrainingError(
        "sequence_too_long",
        f"{cut_off:,} of {len(rows):,} rows of the {part} data are truncated to {max_length:,} "
        "tokens, before their answers differ.",
        hint=f'Raise "Max sequence length": the longest row has {longest_row:,} tokens.',
        longest=longest_row,
    )
