"""Tokenise rated answers, and collate them into batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data import tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import label_rows
from studio.training.data.rows import (
    TrainingRow,
    chosen_answer,
    rated_answer,
    rejected_answer,
)
from studio.training.data.tokenisation import Collator, Examples

COLUMNS = ("input_ids", "labels", "is_good", "other_ids", "other_labels")
"""The answer to a prompt, its rating, and an answer to another prompt after the same prompt."""

SCORES = ("reference", "other_reference")
"""What the reference says of both answers, if it scored them before training."""


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise, label and truncate the answers; drop those that are cut off.

    Each prompt is also followed by the answer of the next row, from which the divergence is
    estimated: upstream takes another answer of the batch, so batches may not be shuffled there.

    Raises:
        TrainingError: a row has no rating.

    """
    pairs = [(row, answer) for row in rows for answer in _rated_answers(row)]
    source = {id(answer): row for row, answer in pairs}
    answers = [answer for _row, answer in pairs]
    own = tokenisation.tokenise(answers, template, tokenizer, max_length)
    others = [
        (labelled.ids[:max_length], labelled.labels[:max_length])
        for labelled in label_rows(_with_other_answers(own.rows), template, tokenizer)
    ]
    columns = own.data.to_dict() | {
        "is_good": [[int(bool(answer.is_good))] for answer in own.rows],
        "other_ids": [ids for ids, _labels in others],
        "other_labels": [labels for _ids, labels in others],
    }
    kept = [source[id(answer)] for answer in own.rows]
    return replace(own, data=Dataset.from_dict(columns), rows=kept)


@dataclass(frozen=True, slots=True)
class RatingCollator(Collator):
    """Makes a batch of answers; `others` is a batch of the same prompts with other answers."""

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
        # A dataclass with slots has no `super()` without arguments.
        batch: dict[str, Any] = Collator.__call__(self, rows)
        batch["is_good"] = torch.cat([row["is_good"] for row in rows])
        batch["others"] = Collator.__call__(
            self, [{"input_ids": row["other_ids"], "labels": row["other_labels"]} for row in rows]
        )
        for name in SCORES:
            if name in rows[0]:
                batch[name] = torch.stack([row[name] for row in rows])
        return batch


def _rated_answers(row: TrainingRow) -> Iterator[TrainingRow]:
    """Yield the answers of a row, of which only the last turns are trained on."""
    if row.rejected:
        yield chosen_answer(row)
        yield rejected_answer(row)
        return
    if row.is_good is None:
        raise TrainingError(
            "bad_row",
            f"{row.location} has no rating.",
            hint="Choose a dataset of rated answers or preferences, or learn from answers.",
        )
    yield rated_answer(row)


def _with_other_answers(answers: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Return each prompt with the answer of the next row that is not the same one."""
    count = len(answers)
    made = []
    for index, answer in enumerate(answers):
        following = (answers[(index + step) % count] for step in range(1, count))
        other = next((one for one in following if one.number != answer.number), answer)
        turns = other.messages[other.prompt_turns :]
        made.append(replace(answer, messages=[*answer.messages[: answer.prompt_turns], *turns]))
    return made
