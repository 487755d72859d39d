"""The divergence guard: reports NaN and infinity, and ends a run that cannot recover.

Unless its policy is to warn only, it also skips a step whose gradient is NaN or infinite, as a loss
scaler does: a single such step would turn every weight into NaN.

A step skipped by the guard or the loss scaler changes no weight and does not advance the
learning-rate schedule. Skipped steps are counted here, and a run with too many of them fails.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerState

from studio.errors import TrainingError
from studio.protocols.events import AlarmRaised
from studio.recipe.precision import FLOAT_FORMATS, Precision
from studio.training.models import weight_formats
from studio.training.monitoring.numeric_health import HealthReading, NumericHealth

GuardPolicy = Literal["warn", "stop", "rollback"]

MAX_NONFINITE_STEPS = 10
"""Consecutive non-finite losses after which a run cannot recover."""

SKIP_WINDOW = 2 * MAX_NONFINITE_STEPS
"""Number of recent steps that are considered.

If `MAX_NONFINITE_STEPS` of them were skipped, the run cannot recover.
"""

MIN_LOSS_SCALE = 1.0
MAX_UNDERFLOW_SHARE = 0.2
MAX_LOST_SHARE = 0.5
MIN_HEADROOM = 4.0

_MIN_RATE_SHARE = 0.5
"""Lost updates are only judged above this share of the full learning rate: during warm-up and
decay, small updates are expected to be lost."""

_MAX_NAMED = 3
"""Non-finite tensors named in a message."""

_MAX_LOST_CHECKS = 2
"""Consecutive health checks with lost updates after which the run is ended."""


class GuardedTrainerMixin(Trainer):  # type: ignore[misc] # upstream is untyped
    """A trainer that passes every gradient to its guard before clipping."""

    guard: "DivergenceGuard | None" = None
    is_loss_informative = True
    """Whether a loss of exactly 0 means that nothing is learned."""

    def own_alarms(self, metrics: Mapping[str, float]) -> Iterator["Alarm"]:
        """Yield what is wrong with the metrics of a logging step, in the eyes of the method."""
        del metrics
        yield from ()

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        self._record_gradients()
        norm: Tensor = super()._clip_grad_norm(model)
        return norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor:
        """Drop the gradients of a step to skip. Called at every step, with or without clipping."""
        if grad_norm is None:
            self._record_gradients()
        norm: Tensor = super()._get_grad_norm(model, grad_norm=grad_norm)
        if self.guard is not None and self.guard.should_skip(norm):
            model.zero_grad()
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            # Upstream resets its sum by `tr_loss -= tr_loss`, and NaN minus NaN stays NaN.
            self._tr_loss.zero_()
        super().log(logs, start_time)

    def _record_gradients(self) -> None:
        if self.guard is not None and self.guard.health is not None:
            self.guard.health.record_gradients()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """A logging step, as the guard sees it."""

    step: int
    metrics: dict[str, float]
    nonfinite_losses: float
    """Consecutive steps up to this one with a non-finite loss."""
    health: HealthReading | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    code: str
    message: str
    hint: str
    module: str = ""
    ends_run: bool = False
    """Whether the model can learn nothing more."""

    def at(self, step: int) -> AlarmRaised:
        """Return the event of this alarm."""
        return AlarmRaised(
            code=self.code, message=self.message, hint=self.hint, step=step, module=self.module
        )


class DivergenceGuard(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Watches a run for divergence."""

    SAVED_AS = "Guard"
    STATE_ATTRIBUTES = (
        "skipped_steps",
        "_first_skipped",
        "_recently_skipped",
        "_told",
        "_origin",
        "_zero_losses",
        "_lost_looks",
    )

    def __init__(
        self, policy: GuardPolicy, mode: Precision, trainer: Trainer, health: NumericHealth | None
    ) -> None:
        self.health = health
        self.skipped_steps = 0
        """Steps that changed no weight because a loss or a gradient was NaN or infinite."""
        self.loss_scale = 0.0
        """The float16 loss scale after the latest step."""
        self.stop_error: TrainingError | None = None
        self._policy = policy
        self._mode = mode
        self._trainer = trainer
        self._skips_step = False
        self._first_skipped = 0
        self._recently_skipped: list[int] = []
        """Steps skipped among the last `SKIP_WINDOW`."""
        self._told: set[str] = set()
        self._origin = ""
        self._zero_losses = 0
        self._lost_looks = 0

    def on_train_begin(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        self.loss_scale = self._read_scale()

    def should_skip(self, norm: Tensor) -> bool:
        """Return whether the current step must be skipped; never with the policy "warn"."""
        self._skips_step = self._policy != "warn" and not bool(torch.isfinite(norm))
        if self._skips_step and self.health is not None and not self._has_loss_scaler:
            self.health.request_check()
        return self._skips_step

    def on_optimizer_step(
        self, _args: object, state: TrainerState, _control: object, **_rest: object
    ) -> None:
        """Count skipped steps and hold back the schedule: upstream reads the flags next."""
        scale = self._read_scale()
        # Fused optimizers never report a step that the scaler skips, but its scale drops.
        is_skipped = self._skips_step or scale < self.loss_scale
        self.loss_scale = scale
        for optimizer in self._trainer.accelerator._optimizers:  # noqa: SLF001 -- no public name
            optimizer._is_overflow = is_skipped  # noqa: SLF001 -- the same
        step = state.global_step + 1
        recent = [
            skipped_step
            for skipped_step in self._recently_skipped
            if skipped_step > step - SKIP_WINDOW
        ]
        self._recently_skipped = [*recent, *[step] * is_skipped]
        if is_skipped:
            self.skipped_steps += 1
            self._first_skipped = self._first_skipped or step

    @property
    def must_stop(self) -> bool:
        """Whether so many recent steps were skipped that the next log ends the run."""
        return self._policy != "warn" and not self._has_loss_scaler and self._skips_too_many

    def refuse_mostly_skipped(self, steps: int) -> None:
        """Refuse to call a run a success if most of its steps were skipped.

        Raises:
            TrainingError: more than half of the steps updated no weights.

        """
        if 2 * self.skipped_steps > steps:
            updated = steps - self.skipped_steps
            raise TrainingError(
                "steps_left_out",
                f"Only {updated:,} of {steps:,} steps updated the weights; in the others the "
                f"loss or a gradient was NaN or infinite{self._origin}.",
                hint=self._skip_hint,
            )

    def take_reading(self) -> HealthReading | None:
        """Return the latest health reading, once."""
        return self.health.take_reading() if self.health is not None else None

    def check(self, reading: LoggedStep) -> list[AlarmRaised]:
        """Return the alarms that are new."""
        if self.health is not None and not _is_finite_step(reading):
            self.health.request_check()
        alarms = [
            *self._loss_alarms(reading),
            *self._health_alarms(reading),
            *self._trainer.own_alarms(reading.metrics),
        ]
        for alarm in alarms:
            if alarm.ends_run and self.stop_error is None and self._policy != "warn":
                self.stop_error = TrainingError(alarm.code, alarm.message, hint=alarm.hint)
        new = [alarm for alarm in alarms if alarm.code not in self._told]
        self._told |= {alarm.code for alarm in new}
        return [alarm.at(reading.step) for alarm in new]

    def check_result(
        self, name: str, value: float, rounding: float, step: int
    ) -> AlarmRaised | None:
        """Return an alarm if a result is not larger than its rounding error."""
        if abs(value) > rounding:
            return None
        alarm = Alarm(
            code="rewards_rounded",
            message=f"This may be rounding error: {name} is {value:.2g}, and computing in "
            f"{self._mode.compute} changes it by about {rounding:.2g} in each row.",
            hint="Train longer, or choose float32 to be sure.",
        )
        return alarm.at(step)

    def raise_if_ended(self) -> None:
        """Raise the error that ends the run, if there is one."""
        if self.stop_error is not None:
            raise self.stop_error

    @property
    def _has_loss_scaler(self) -> bool:
        return self._trainer.accelerator.scaler is not None

    def _read_scale(self) -> float:
        scaler = self._trainer.accelerator.scaler
        return float(scaler.get_scale()) if scaler is not None else 0.0

    @property
    def _skips_too_many(self) -> bool:
        return len(self._recently_skipped) >= MAX_NONFINITE_STEPS

    @property
    def _skip_hint(self) -> str:
        if self._has_loss_scaler:
            return (
                "Choose bfloat16 or float32, or train for more steps: float16 skips some "
                "steps until it finds its loss scale."
            )
        return "Lower the learning rate, and check the data for broken rows."

    def _skip_alarms(self) -> Iterator[Alarm]:
        """Report skipped steps. A loss scaler skips some to find its scale, and stops by itself."""
        if self._first_skipped and not self._has_loss_scaler:
            yield Alarm(
                code="step_left_out",
                message=f"Step {self._first_skipped:,} was skipped: its loss or a gradient "
                "was NaN or infinite.",
                hint="A single skipped step is harmless. Lower the learning rate if more follow.",
            )
        if self._skips_too_many:
            yield Alarm(
                code="steps_left_out",
                message=f"{len(self._recently_skipped)} of the last {SKIP_WINDOW} steps were "
                f"skipped: the loss or a gradient was NaN or infinite{self._origin}.",
                hint=self._skip_hint,
                ends_run=not self._has_loss_scaler,
            )

    def _loss_alarms(self, reading: LoggedStep) -> Iterator[Alarm]:
        if reading.nonfinite_losses < MAX_NONFINITE_STEPS:
            yield from self._skip_alarms()
        else:
            yield Alarm(
                code="non_finite",
                message=f"The loss has been NaN or infinite for {MAX_NONFINITE_STEPS} "
                f"steps{self._origin}.",
                hint="Lower the learning rate. In float16, try bfloat16 or float32.",
                ends_run=True,
            )
        if reading.metrics.get("loss_scale", math.inf) < MIN_LOSS_SCALE:
            yield Alarm(
                code="loss_scale_collapsed",
                message=f"The loss scale has fallen below 1{self._origin}: this model's "
                "values do not fit into float16.",
                hint="Choose bfloat16 or float32.",
                ends_run=True,
            )
        is_zero = reading.metrics["loss"] == 0 and self._trainer.is_loss_informative
        self._zero_losses = self._zero_losses + 1 if is_zero else 0
        if self._zero_losses >= MAX_NONFINITE_STEPS:
            # With every token predicted correctly, a loss of zero means the data has been
            # memorised.
            is_memorised = reading.metrics.get("mean_token_accuracy") == 1
            yield Alarm(
                code="zero_loss",
                message=f"The loss has been exactly zero {MAX_NONFINITE_STEPS} times: "
                f"{'the data is memorised' if is_memorised else 'the model learns nothing'}.",
                hint="Stop here and keep the model, or add more data."
                if is_memorised
                else "Check whether the answers are truncated, or raise the max sequence length.",
                ends_run=not is_memorised,
            )

    def _health_alarms(self, reading: LoggedStep) -> Iterator[Alarm]:
        if reading.health is None:
            return
        yield from self._overflow_alarms(reading.health)
        yield from self._underflow_alarms(reading)
        yield from self._lost_update_alarms(reading)

    def _overflow_alarms(self, health: HealthReading) -> Iterator[Alarm]:
        name, peak = health.largest_float16
        if health.module:
            self._origin = self._origin or f"; it began in {health.module}"
            yield Alarm(
                code="activations_overflow",
                message=f"The first NaN or infinite output came from {health.module}.",
                hint="In float16, choose bfloat16 or float32; otherwise lower the learning rate.",
                module=health.module,
            )
        elif peak * MIN_HEADROOM > FLOAT_FORMATS["float16"].max:
            yield Alarm(
                code="little_headroom",
                message=f"The outputs of {name} reach {peak:,.0f}; the limit of float16 is 65,504.",
                hint="Choose bfloat16, which has the range of float32.",
                module=name,
            )
        # A loss scaler produces such steps while it searches for its scale.
        if health.tensor and not health.module and not self._has_loss_scaler:
            yield Alarm(
                code="gradients_overflow",
                message=f"A gradient was NaN or infinite, first that of {health.tensor}.",
                hint="Lower the learning rate.",
                module=health.tensor,
            )

    def _underflow_alarms(self, reading: LoggedStep) -> Iterator[Alarm]:
        share = reading.metrics.get("grad_underflow_share", 0.0)
        if share > MAX_UNDERFLOW_SHARE and self._mode.compute == "float16":
            yield Alarm(
                code="gradients_underflow",
                message=f"{100 * share:.0f} % of the gradients were rounded to zero in float16.",
                hint="Choose bfloat16 or float32.",
            )

    def _lost_update_alarms(self, reading: LoggedStep) -> Iterator[Alarm]:
        full = self._trainer.args.learning_rate
        if reading.metrics["learning_rate"] < _MIN_RATE_SHARE * full or not self._rounds_weights:
            return
        share = reading.metrics.get("lost_update_share", 0.0)
        self._lost_looks = self._lost_looks + 1 if share > MAX_LOST_SHARE else 0
        if self._lost_looks:
            yield Alarm(
                code="updates_lost",
                message=f"{100 * share:.0f} % of the updates are lost: they are too small for "
                "16-bit weights.",
                hint="Keep the weights in float32, as the mixed modes do, or raise the "
                "learning rate.",
                ends_run=self._lost_looks >= _MAX_LOST_CHECKS,
            )

    @property
    def _rounds_weights(self) -> bool:
        """Whether an update that is too small for a 16-bit weight is lost for good."""
        if self._mode.rounding != "nearest" or self._mode.master is not None:
            return False
        trained = (p for p in self._trainer.model.parameters() if p.requires_grad)
        return all(p.element_size() == 2 for p in trained)  # noqa: PLR2004 -- bytes


def nonfinite_weights(model: nn.Module) -> list[str]:
    """Return the names of trained tensors that contain NaN or infinity."""
    return _find_nonfinite((name, p) for name, p in model.named_parameters() if p.requires_grad)


def refuse_nonfinite_weights(model: nn.Module) -> None:
    """Refuse non-finite weights: they must never pass for a result."""
    if broken := nonfinite_weights(model):
        raise TrainingError(
            "non_finite",
            f"Training has produced weights that are NaN or infinite, first {broken[0]}; "
            "none were saved.",
            hint="Lower the learning rate. In a 16-bit format, try a wider one.",
        )


def refuse_nonfinite_base(model: nn.Module, name: str) -> None:
    """Refuse a model whose files contain NaN or infinity, before training gets the blame.

    Quantising may turn NaN into any number, so for a quantised model the files are read.
    """
    if all(weight.is_floating_point() for weight in model.parameters()):
        counts = _count_nonfinite(model)
    else:
        counts = weight_formats.count_nonfinite(name)
    if counts:
        count, names = sum(counts.values()), _join_names(list(counts))
        message = (
            f"{count:,} weights of the base model are NaN or infinite, in {names}. Nothing was "
            "trained."
        )
        if count == 1:
            message = (
                f"1 weight of the base model is NaN or infinite, in {names}. Nothing was trained."
            )
        raise TrainingError(
            "corrupt_weights",
            message,
            hint="Download the model again, or choose another one.",
        )


def refuse_nonfinite_teacher(model: nn.Module) -> None:
    """Refuse a teacher whose files contain NaN or infinity.

    Raises:
        TrainingError: it has; the code is one that offers no other base model.

    """
    if counts := _count_nonfinite(model):
        count, names = sum(counts.values()), _join_names(list(counts))
        raise TrainingError(
            "conflict",
            f"{count:,} of the teacher's weights are NaN or infinite, in {names}. Nothing was "
            "trained.",
            hint="Download the model again, or choose another one.",
        )


def _count_nonfinite(model: nn.Module) -> dict[str, int]:
    """Count the weights that are NaN or infinite, by name."""
    parameters = dict(model.named_parameters())
    return {
        name: int((~parameters[name].isfinite()).sum())
        for name in _find_nonfinite(parameters.items())
    }


def _join_names(names: Sequence[str]) -> str:
    extra = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {extra} more" if extra > 0 else "")


def _find_nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    named_tensors = [(name, tensor.detach()) for name, tensor in tensors if tensor.numel()]
    if not named_tensors:
        return []
    norms = torch._foreach_norm([tensor for _, tensor in named_tensors], 2, dtype=torch.float32)  # noqa: SLF001 -- clip_grad_norm_ uses it, too
    finite = torch.stack(norms).isfinite().tolist()
    suspects = [
        tensor for tensor, is_finite in zip(named_tensors, finite, strict=True) if not is_finite
    ]
    # A norm can overflow even if every weight is finite.
    return [name for name, weight in suspects if not weight.isfinite().all()]


def _is_finite_step(reading: LoggedStep) -> bool:
    finite = math.isfinite(reading.metrics.get("grad_norm", 0.0))
    return finite and reading.nonfinite_losses == 0
