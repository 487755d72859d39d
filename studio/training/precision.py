"""A precision mode made real, and proof of it: what runs is measured, never taken from a flag.

    row of the table  ->  flags  ->  the trainer  ->  what really runs
         `-------------------- must be equal ----------------'

Two things upstream does quietly are undone here: `fp16` on a processor falls back to float32,
and a step that the loss scaler skips still moves the learning-rate schedule.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import nn
from transformers import Trainer, TrainerCallback
from transformers.pytorch_utils import Conv1D

from studio.errors import TrainingError
from studio.recipe.precision import Precision

_PROBE_TOKENS = 8


class RealPrecision(Trainer):  # type: ignore[misc] # upstream is untyped
    """A trainer whose fp16 is fp16 wherever it runs."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        accelerator = self.accelerator
        if self.args.fp16 and accelerator.device.type == "cpu" and accelerator.scaler is None:
            accelerator.native_amp = True
            accelerator.scaler = torch.amp.GradScaler("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The number formats of a training step, as the table names them."""

    weights: str
    compute: str
    gradients: str
    scaler: bool


class PrecisionWatch(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Proves the mode before the first step, and counts the steps a loss scaler skips."""

    def __init__(self, trainer: Trainer, mode: Precision) -> None:
        self.skipped_steps = 0
        self.loss_scale = 0.0
        self.found: Formats | None = None
        self._trainer = trainer
        self._mode = mode
        self._states_seen = False

    def on_train_begin(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        _refuse_orphans(self._trainer)
        wanted = Formats(
            weights=self._mode.weights,
            compute=self._mode.compute,
            gradients=self._mode.gradients,
            scaler=self._mode.scaler,
        )
        self.found = measure(self._trainer)
        if self.found != wanted:
            raise _fallback(self._mode, asdict(wanted), asdict(self.found))
        if self._scaler is not None:
            self.loss_scale = self._scaler.get_scale()

    def on_optimizer_step(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        if self._scaler is not None:
            self._count_skip(self._scaler.get_scale())
        if not self._states_seen:
            self._check_states()

    @property
    def _scaler(self) -> "torch.amp.GradScaler | None":
        scaler: torch.amp.GradScaler | None = self._trainer.accelerator.scaler
        return scaler

    def _count_skip(self, scale: float) -> None:
        if scale < self.loss_scale:
            self.skipped_steps += 1
            # Fused optimizers never report a skip; the schedule reads this flag right after us.
            for optimizer in self._trainer.accelerator._optimizers:  # noqa: SLF001 -- no public door
                optimizer._is_overflow = True  # noqa: SLF001 -- the same
        self.loss_scale = scale

    def _check_states(self) -> None:
        found = _state_formats(self._trainer.optimizer)
        self._states_seen = bool(found)
        wanted = {self._mode.optimizer_states}
        if found and found != wanted:
            raise _fallback(self._mode, {"optimizer states": wanted}, {"optimizer states": found})


def measure(trainer: Trainer) -> Formats:
    """Look at the weights, and at what a small forward pass computes in."""
    model = trainer.model
    trainable = {p.dtype for p in model.parameters() if p.requires_grad}
    return Formats(
        weights=_names({p.dtype for p in model.parameters() if p.is_floating_point()}),
        compute=_names(_computed(trainer.model_wrapped, trainer.args.device)),
        gradients=_names(trainable),
        scaler=_scales(trainer.accelerator),
    )


def _computed(model: nn.Module, device: torch.device) -> set[torch.dtype]:
    """Return the format that comes out of the model's first matrix product."""
    seen: set[torch.dtype] = set()
    first = next(m for m in model.modules() if isinstance(m, nn.Linear | Conv1D))
    hook = first.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    tokens = torch.zeros((1, _PROBE_TOKENS), dtype=torch.long, device=device)
    try:
        with undisturbed(model):
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    finally:
        hook.remove()
    return seen


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Use a model between training steps and leave no trace: no gradient, no dropout, no dice."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        model.train(training)


def _scales(accelerator: Accelerator) -> bool:
    return accelerator.scaler is not None and accelerator.scaler.is_enabled()


def _names(formats: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in formats))


class _HasState(Protocol):
    state: dict[Any, dict[str, Any]]


def _state_formats(optimizer: _HasState) -> set[str]:
    return {
        _names({value.dtype})
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }


def _refuse_orphans(trainer: Trainer) -> None:
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    orphans = [
        n for n, p in trainer.model.named_parameters() if p.requires_grad and id(p) not in held
    ]
    if orphans:
        raise TrainingError(
            "orphans", f"{len(orphans)} weights would not be trained; the first is {orphans[0]}."
        )


def _fallback(mode: Precision, wanted: object, found: object) -> TrainingError:
    return TrainingError(
        "precision_fallback",
        f"{mode.title} was asked for, but this model would train otherwise: "
        f"wanted {wanted}, found {found}.",
        hint="Choose another precision for this model.",
    )
