"""A trainer of models that give scores instead of tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer

from studio.training import learning_rates
from studio.training.memory.dry_run import BatchShape
from studio.training.models import heads
from studio.training.run_trainer import RunTrainer

Batch = dict[str, Any]


class HeadTrainer(RunTrainer, Trainer):  # type: ignore[misc] # upstream is untyped
    """Upstream's plain trainer, with a learning rate of its own for the new output layer.

    Losses are means over the rows of an accumulated batch, so that they do not depend on how it is
    divided.
    """

    columns: tuple[str, ...]
    """The columns of the data that a batch is made of."""
    head_lr_ratio = 1.0
    """How many times the learning rate the head uses."""

    def create_optimizer(self, *args: object) -> Optimizer:
        """Put the head into groups with its own learning rate."""
        is_new = self.optimizer is None
        optimizer: Optimizer = super().create_optimizer(*args)
        if is_new and self.head_lr_ratio != 1:
            ids = {
                id(weight)
                for module in heads.new_modules(self.model)
                for weight in module.parameters()
            }
            rate = self.head_lr_ratio * self.args.learning_rate
            learning_rates.separate(optimizer, ids, lr=rate)
        return optimizer

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the scores of each sequence: shape (sequences, scores of the head), float32."""
        read = {name: batch[name] for name in ("input_ids", "attention_mask")}
        scores: Tensor = model(**read, use_cache=False).logits
        return scores

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Batch,
        _prediction_loss_only: bool,  # noqa: FBT001 -- upstream's signature
        ignore_keys: object = None,  # noqa: ARG002 -- the same
    ) -> tuple[Tensor, None, None]:
        """Return the loss alone: the accumulator counts the rest."""
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
        return loss.detach(), None, None

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        return shape.tensors(device)

    def _get_num_items_in_batch(self, batches: Sequence[Batch], device: object) -> int:
        """Return the number of rows in an accumulated batch."""
        del device
        return sum(map(self.count_rows, batches))

    def count_rows(self, batch: Batch) -> int:
        """Return the number of rows of a batch."""
        return len(batch["input_ids"])

    def _set_signature_columns_if_needed(self) -> None:
        """Keep all columns: upstream removes what the model does not read."""
        self._signature_columns = list(self.columns)
