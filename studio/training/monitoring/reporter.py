"""Report training progress: events for the studio, and a line per logging step for the log."""

import math
import time
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from studio.metrics import MethodMetrics
from studio.protocols.events import (
    AlarmRaised,
    Event,
    MagnitudesMeasured,
    MetricsLogged,
    Started,
)
from studio.training.memory.process_memory import MemoryProbe
from studio.training.monitoring.divergence_guard import DivergenceGuard, LoggedStep
from studio.training.stop_handler import StopHandler


class Reporter(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Turns what the trainer logs into events, and stops the run on request."""

    SAVED_AS = "Reporter"
    STATE_ATTRIBUTES = ("tokens", "last", "best_eval_loss")

    def __init__(
        self,
        emit: Callable[[Event], None],
        stop: StopHandler,
        guard: DivergenceGuard,
        memory_probe: MemoryProbe,
        metrics: MethodMetrics,
        resolve: Callable[[], dict[str, Any]],
    ) -> None:
        self.resolved: dict[str, Any] = {}
        self.tokens = 0
        self.last: dict[str, float] = {}
        """The latest value of every metric."""
        self.best: float | None = None
        """The best value of the objective after training began."""
        self._metrics = metrics
        self._emit = emit
        self._stop = stop
        self._guard = guard
        self._memory_probe = memory_probe
        self._resolve = resolve
        self.throughput = Throughput()
        self.stopped_early = False
        """Whether training ended early because the user asked to keep the model so far."""

    def on_train_begin(
        self,
        _args: object,
        state: TrainerState,
        _control: object,
        *,
        model: nn.Module,
        **_rest: object,
    ) -> None:
        self.resolved = self._resolve()
        self._emit(Started(total_steps=state.max_steps, resolved=self.resolved))
        self._memory_probe.reset(model)
        self.throughput.start()

    def on_step_end(
        self, _args: object, state: TrainerState, control: TrainerControl, **_rest: object
    ) -> None:
        self.throughput.step(state.global_step)
        self._stop.step = state.global_step
        # Always log the last step, or its tokens would not be counted.
        control.should_log |= state.global_step >= state.max_steps
        # A run that cannot recover must not wait for its next logging step.
        control.should_log |= self._guard.must_stop
        self._stop.check()
        if self._stop.requested == "keep" and not control.should_training_stop:
            self.stopped_early = control.should_training_stop = True
            control.should_log = control.should_evaluate = True

    def on_prediction_step(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        self._stop.check()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        _control: object,
        logs: dict[str, float],
        **_rest: object,
    ) -> None:
        if "loss" not in logs:
            return
        tokens = int(logs["tokens"])
        step_seconds, rate = self.throughput.lap(tokens)
        self.tokens += tokens
        metrics = {key: float(logs[key]) for key in self._metrics.keys("train") if key in logs}
        metrics |= {"tokens_per_second": rate, "step_seconds": step_seconds}
        metrics |= {
            "peak_memory_bytes": self._memory_probe.peak_bytes()
        } | self._loss_scale_metrics()
        findings = self._guard.take_reading()
        if findings is not None:
            metrics |= findings.metrics | {"nonfinite_losses": logs["nonfinite_losses"]}
        self._report(state, metrics)
        if findings is not None and findings.magnitudes:
            self._emit(MagnitudesMeasured(step=state.global_step, histograms=findings.magnitudes))
        self._check_divergence(
            LoggedStep(
                step=state.global_step,
                metrics=metrics,
                nonfinite_losses=logs["nonfinite"] / args.gradient_accumulation_steps,
                health=findings,
            )
        )

    def on_evaluate(
        self,
        _args: object,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **_rest: object,
    ) -> None:
        self.throughput.resume()
        eval_metrics = {
            key: float(metrics[key]) for key in self._metrics.keys("eval") if key in metrics
        }
        # The untrained model is the baseline, and its checkpoint is never the best.
        if state.global_step:
            self.best = self._better_of(self.best, eval_metrics[self._metrics.objective.key])
        self._report(state, eval_metrics)
        if state.global_step >= state.max_steps:
            self._check_results(state.global_step, eval_metrics)
        if self._stop.requested == "keep" and not control.should_training_stop:
            self.stopped_early = control.should_training_stop = True

    def on_save(self, _args: object, _state: object, _control: object, **_rest: object) -> None:
        self.throughput.resume()

    def results(self) -> dict[str, float]:
        """Return the final metrics of the run."""
        objective = self._metrics.objective.key
        return {
            "loss": self.last["loss"],
            objective: self.last[objective],
            f"best_{objective}": math.inf if self.best is None else self.best,
            "train_seconds": self.throughput.training_seconds,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / self.throughput.training_seconds,
            "peak_memory_bytes": self._memory_probe.peak_bytes(),
        } | {
            name: value
            for name, value in self._loss_scale_metrics().items()
            if name == "skipped_steps"
        }

    @property
    def best_eval_loss(self) -> float | None:
        """The best value of the objective, under its name in checkpoints."""
        return self.best

    @best_eval_loss.setter
    def best_eval_loss(self, value: float | None) -> None:
        self.best = value

    def _better_of(self, best: float | None, value: float) -> float:
        pick = max if self._metrics.objective.better == "higher" else min
        return value if best is None else pick(best, value)

    def _loss_scale_metrics(self) -> dict[str, float]:
        skipped = self._guard.skipped_steps
        if self._guard.loss_scale:
            return {"loss_scale": self._guard.loss_scale, "skipped_steps": skipped}
        return {"skipped_steps": skipped} if skipped else {}

    def _check_divergence(self, reading: LoggedStep) -> None:
        for alarm in self._guard.check(reading):
            self._raise(alarm)
        self._guard.raise_if_ended()

    def _check_results(self, step: int, metrics: dict[str, float]) -> None:
        """Compare the last validation with its rounding error, where that was measured."""
        for spec in self._metrics.all:
            if spec.rounding_key in metrics:
                value, rounding = metrics[spec.key], metrics[spec.rounding_key]
                alarm = self._guard.check_result(spec.title, value, rounding, step)
                if alarm is not None:
                    self._raise(alarm)

    def _raise(self, alarm: AlarmRaised) -> None:
        print(f"{alarm.message} {alarm.hint}", flush=True)  # noqa: T201 -- the run's own log
        self._emit(alarm)

    def _report(self, state: TrainerState, metrics: dict[str, float]) -> None:
        self.last |= metrics
        self._emit(
            MetricsLogged(
                step=state.global_step,
                epoch=state.epoch or 0.0,
                tokens=self.tokens,
                seconds=self.throughput.seconds,
                metrics=metrics,
            )
        )
        print(_log_line(state, metrics), flush=True)  # noqa: T201 -- the run's own log


class Throughput:
    """Measures training speed, excluding the time for evaluations and saves."""

    SAVED_AS = "Pace"
    STATE_ATTRIBUTES = ("ages", "training_seconds", "_steps", "_lap_steps")

    def __init__(self) -> None:
        self._began = self._lap_began = self._step_ended = 0.0
        self._steps = self._lap_steps = 0
        self.training_seconds = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began if self._began else 0.0

    @property
    def ages(self) -> tuple[float, float, float]:
        """Seconds since the start of training, of the lap, and of the pause after the last step."""
        now = time.perf_counter()
        return now - self._began, now - self._lap_began, now - self._step_ended

    @ages.setter
    def ages(self, ages: tuple[float, float, float]) -> None:
        now = time.perf_counter()
        self._began, self._lap_began, self._step_ended = (now - age for age in ages)

    def start(self) -> None:
        self._began = self._lap_began = self._step_ended = time.perf_counter()

    def step(self, number: int) -> None:
        self._steps = number
        self._step_ended = time.perf_counter()

    def lap(self, tokens: int) -> tuple[float, float]:
        """Return seconds per step and tokens per second since the last lap."""
        now = time.perf_counter()
        elapsed, steps = now - self._lap_began, self._steps - self._lap_steps
        self._lap_began, self._lap_steps = now, self._steps
        self.training_seconds += elapsed
        return elapsed / max(steps, 1), tokens / elapsed

    def resume(self) -> None:
        """Resume the lap after a pause that began when the last step ended."""
        now = time.perf_counter()
        self._lap_began += now - max(self._step_ended, self._lap_began)
        self._step_ended = now


def _log_line(state: TrainerState, metrics: dict[str, float]) -> str:
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    return f"step {state.global_step}/{state.max_steps}  {numbers}"
