"""Tokenise the prompts of tasks. The answers are still to be written."""

from collections.abc import Sequence

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow
from studio.training.data.tasks import Task, to_task
from studio.training.data.tokenisation import Collator, Examples
from studio.training.rollouts.grading import Prompt

COLUMNS = ("input_ids", "labels", "index")


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise the prompts of tasks; leave out rows without one, and prompts that are too long.

    The columns are `input_ids`, `labels` (nothing in a prompt is learned), and `index`: that of
    the row among those that are kept.

    Raises:
        TrainingError: the model has no chat template.

    """
    if template is None:
        raise TrainingError(
            "conflict",
            "Prompts need a chat template, and these rows are plain text.",
            hint="Choose a dataset of conversations or tasks.",
        )
    columns: dict[str, list[list[int]]] = {name: [] for name in COLUMNS}
    kept: list[TrainingRow] = []
    too_long = longest = 0
    for row in rows:
        task = to_task(row)
        if task is None:
            continue
        ids = prompt_ids(task, template, tokenizer)
        longest = max(longest, len(ids))
        if len(ids) > max_length:
            too_long += 1
            continue
        columns["input_ids"].append(ids)
        columns["labels"].append([IGNORE_INDEX] * len(ids))
        columns["index"].append([len(kept)])
        kept.append(row)
    return Examples(
        Dataset.from_dict(columns),
        kept,
        dropped=len(rows) - len(kept),
        truncated=0,
        tokens=sum(map(len, columns["input_ids"])),
        longest=max(map(len, columns["input_ids"]), default=0),
        longest_row=longest,
        cut_off=too_long,
    )


def prompt_ids(task: Task, template: ChatTemplate, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of a prompt, up to where the answer begins."""
    text = template.render_prompt(task.messages, task.tools)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


class PromptCollator(Collator):
    """Makes a batch of prompts: their rows, and their tokens padded on the right."""

    def __call__(self, rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        ids = [row["input_ids"] for row in rows]
        return {
            "index": torch.cat([row["index"] for row in rows]),
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id),
        }


def list_prompts(examples: Examples) -> list[Prompt]:
    """Return the prompts of tokenised rows, in their order."""
    prompts = []
    for ids, row in zip(examples.data["input_ids"], examples.rows, strict=True):
        task = to_task(row)
        assert task is not None  # noqa: S101 -- rows without a task are left out
        prompts.append(Prompt(ids=list(ids), task=task, row=row.number))
    return prompts
