"""Apply a precision mode and verify it by measuring what runs, never by trusting a flag.

    row of the table  ->  plan  ->  the trainer  ->  audit of what really runs
                            `--------- must be equal ---------'

It also reverts a silent change by upstream: on a CPU, `fp16` would fall back to float32.
"""

from dataclasses import asdict, replace
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from studio.errors import TrainingError
from studio.recipe.precision import Precision
from studio.training.precision import float8, matmul_precision
from studio.training.precision.format_audit import (
    NONE,
    NumberFormats,
    audit_trainer,
    join_formats,
    optimizer_formats,
    weights_in_other_formats,
    weights_kept_in_float32,
    weights_without_optimizer,
)

_MAX_NAMED = 3
"""Weights named in a message about differing formats."""


class PrecisionTrainerMixin(Trainer):  # type: ignore[misc] # upstream is untyped
    """A trainer that uses fp16 on every device, and whose products read the mode's format."""

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
    """Verifies the mode before the first step, and once more after it."""

    def __init__(self, trainer: PrecisionTrainerMixin, plan: NumberFormats) -> None:
        self.plan = plan
        self.measured: NumberFormats | None = None
        self._details: dict[str, Any] = {}
        self._trainer = trainer
        self._first_step_seen = False

    def on_train_begin(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        if missing := weights_without_optimizer(self._trainer):
            raise TrainingError(
                "orphans",
                "Some weights are not in the optimizer and would not be trained: "
                f"{len(missing)}, first {missing[0]}.",
            )
        # Checked first: a weight in a wrong format may prevent the forward pass altogether.
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
        """Return the planned and the measured formats."""
        measured = asdict(self.measured) if self.measured else {}
        emulated = {"matmul_emulated": self._trainer.is_emulated}
        return {"plan": asdict(self.plan), "audit": {**measured, **emulated, **self._details}}

    def _verify_first_step(self) -> None:
        """Verify the actual gradients and optimizer states after the first step."""
        optimizer = self._trainer.optimizer
        if not optimizer.state:
            return
        float32_weights = weights_kept_in_float32(self._trainer.model, self.plan)
        trained = (
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if p not in float32_weights
        )
        gradients = join_formats(p.grad.dtype for p in trained if p.grad is not None)
        if gradients == NONE:
            return  # The guard skipped this step, because its gradient was NaN or infinite.
        self._first_step_seen = True
        states, master = optimizer_formats(optimizer, float32_weights)
        measured = replace(self.plan, gradients=gradients, optimizer_states=states, master=master)
        self._refuse_difference(self.plan.differences(measured))

    def _refuse_difference(self, difference: str) -> None:
        if difference:
            raise TrainingError(
                "precision_refused",
                f"The precision {self._trainer.mode.title} was requested, but this model "
                f"would train differently: {difference}.",
                hint="Choose another precision for this model.",
            )
