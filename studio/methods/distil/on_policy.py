"""Distillation on answers that the student writes itself."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from studio.methods.distil.comparison import TeacherTrainer
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.tokenisation import Collator
from studio.training.memory.dry_run import BatchShape
from studio.training.models.eval_context import keep_forward_wrappers
from studio.training.rollouts.generation import SamplingSettings, write_answers

Batch = dict[str, Any]

_IS_WRITTEN = "is_written"
"""Marks a batch whose answers the student has written."""


class OnPolicyTrainer(TeacherTrainer):
    """Replaces the last answer of each training row by one that the student writes.

    All answers of a step are written before its first batch. Validation rows keep their answers.
    """

    sampling: SamplingSettings

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor | int | None]:
        """Return the batches of a step, and how many answer tokens they have."""
        batches = self._write_answers(list(islice(epoch_iterator, num_batches)))
        return batches, self._get_num_items_in_batch(batches, device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 -- upstream's signature
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        is_written = inputs.pop(_IS_WRITTEN, False)
        if model.training and torch.is_grad_enabled() and not is_written:
            # It is timed before training.
            (inputs,) = self._write_answers([inputs])
            del inputs[_IS_WRITTEN]
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        return super().dummy_batch(shape, device) | {_IS_WRITTEN: True}

    def _write_answers(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return batches with other answers. The same step of the same run gives the same ones."""
        prompts = [last_prompts(batch) for batch in batches]
        with keep_forward_wrappers(self.model), self.compute_loss_context_manager():
            model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
            answers = iter(write_answers(model, [*chain(*prompts)], self.sampling, self._seed))
        return [
            self._collate(batch, [answer.ids for answer in islice(answers, len(batch))])
            for batch in prompts
        ]

    @property
    def _seed(self) -> int:
        """A seed of the step. Torch reads 32 bits of it on a CPU."""
        text = f"{self.args.seed}/{self.state.global_step}"
        return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big")

    def _collate(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Batch:
        rows = [
            {
                "input_ids": torch.tensor(prompt + answer),
                "labels": torch.tensor([IGNORE_INDEX] * len(prompt) + answer),
            }
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        batch: Batch = self._prepare_inputs(Collator(self.pad_token_id)(rows))
        return batch | {_IS_WRITTEN: True}


def last_prompts(batch: Batch) -> list[list[int]]:
    """Return the tokens of each row before its last answer."""
    rows = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
    return [ids[: last_answer_start(labels)] for ids, labels in rows]


def last_answer_start(labels: Sequence[int]) -> int:
    """Return where the last trained stretch of a row begins."""
    end = max(i for i, label in enumerate(labels, 1) if label != IGNORE_INDEX)
    return max((i for i, label in enumerate(labels[:end], 1) if label == IGNORE_INDEX), default=0)
