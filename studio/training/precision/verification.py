"""A precision mode made real, and proof of it: what runs is measured, never taken from a flag.

    row of the table  ->  plan  ->  the trainer  ->  audit of what really runs
                            `--------- must be equal ---------'

One thing upstream does quietly is undone here: `fp16` on a processor falls back to float32.
"""

from dataclasses import asdict, replace
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from studio.errors import TrainingError
from studio.recipe.precision import Precision
from studio.training.precision import float8, matmul_precision
from studio.training.precision.format_audit import (
    NumberFormats,
    audit_trainer,
    join_formats,
    optimizer_formats,
    weights_in_other_formats,
    weights_kept_in_float32,
    weights_without_optimizer,
)

_MAX_NAMED = 3
"""Weights out of line that are named; more would tell no more."""


class PrecisionTrainerMixin(Trainer):  # type: ignore[misc] # upstream is untyped
    """A trainer whose fp16 is fp16 wherever it runs, and whose products read what they should."""

    mode: Precision
    is_emulated = False

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        accelerator = self.accelerator
        if self.args.fp16 and accelerator.device.type == "cpu" and accelerator.scaler is None:
            accelerator.native_amp = True
            accelerator.scaler = torch.amp.GradScaler("cpu")

    def train(self, *args: object, **kwargs: object) -> object:
        with matmul_precision.apply_precision(self.mode, self.args.device) as is_emulated:
            self.is_emulated = is_emulated or float8.is_emulated(self.model)
            return super().train(*args, **kwargs)


class PrecisionVerifier(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Proves the mode before the first step, and once more after it."""

    def __init__(self, trainer: PrecisionTrainerMixin, plan: NumberFormats) -> None:
        self.plan = plan
        self.measured: NumberFormats | None = None
        self._details: dict[str, Any] = {}
        self._trainer = trainer
        self._first_step_seen = False

    def on_train_begin(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        if lost := weights_without_optimizer(self._trainer):
            raise TrainingError(
                "orphans", f"{len(lost)} weights would not be trained; the first is {lost[0]}."
            )
        # Looked at first: a weight out of line could keep the model from computing at all.
        self._refuse_difference(
            "; ".join(weights_in_other_formats(self._trainer, self.plan)[:_MAX_NAMED])
        )
        self.measured, self._details = audit_trainer(self._trainer, self.plan)
        self._refuse_difference(self.plan.differences(self.measured))

    def on_optimizer_step(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        if not self._first_step_seen:
            self._verify_first_step()

    def to_dict(self) -> dict[str, Any]:
        """Return what was planned, and what was found."""
        found = asdict(self.measured) if self.measured else {}
        emulated = {"matmul_emulated": self._trainer.is_emulated}
        return {"plan": asdict(self.plan), "audit": {**found, **emulated, **self._details}}

    def _verify_first_step(self) -> None:
        """Look at the gradients and states that are really there, once a step has made them."""
        optimizer = self._trainer.optimizer
        if not optimizer.state:
            return
        self._first_step_seen = True
        wide = weights_kept_in_float32(self._trainer.model, self.plan)
        held = (p for group in optimizer.param_groups for p in group["params"] if p not in wide)
        gradients = join_formats(p.grad.dtype for p in held if p.grad is not None)
        states, master = optimizer_formats(optimizer, wide)
        found = replace(self.plan, gradients=gradients, optimizer_states=states, master=master)
        self._refuse_difference(self.plan.differences(found))

    def _refuse_difference(self, difference: str) -> None:
        if difference:
            raise TrainingError(
                "precision_refused",
                f"{self._trainer.mode.title} was asked for, but this model would train otherwise: "
                f"{difference}.",
                hint="Choose another precision for this model.",
            )
