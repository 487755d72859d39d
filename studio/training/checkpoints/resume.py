"""Save checkpoints when they are due, and resume an interrupted run from them, bit for bit."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState

from studio.errors import TrainingError
from studio.protocols.events import AlarmRaised, Checkpointed, Event
from studio.recipe.sections import Checkpoints
from studio.training import exception_mapping
from studio.training.checkpoints import checksums, trainer_state
from studio.training.checkpoints.checksums import CorruptCheckpointError
from studio.training.checkpoints.store import CheckpointStore
from studio.training.checkpoints.trainer_state import Stateful
from studio.training.monitoring.divergence_guard import nonfinite_weights
from studio.training.stop_handler import StopHandler, StopRequested

SAVE_PAUSE_FACTOR = 20
"""Minimum pause between timed saves, in save durations: saving takes a twentieth of the time at
most."""


class ResumableTrainerMixin(Trainer):  # type: ignore[misc] # upstream is untyped
    """A trainer that leaves checkpoints to its saver: exact, and complete or absent."""

    saver: "CheckpointSaver"
    accumulators: tuple[Stateful, ...] = ()
    """Counters of the method itself."""

    def _save_checkpoint(self, _model: nn.Module, _trial: None) -> None:
        self.saver.save()

    def _load_from_checkpoint(self, folder: str, _model: nn.Module | None = None) -> None:
        trainer_state.load_weights(self.model, Path(folder))

    def _load_best_model(self) -> None:
        self.saver.load_best()

    def _determine_best_metric(self, metrics: dict[str, float], trial: None) -> bool:
        """Save when the model is the best so far or a save is due, which upstream would forget."""
        is_best: bool = super()._determine_best_metric(metrics, trial)
        return is_best or self.control.should_save

    def _run_epoch(self, **arguments: Any) -> None:  # noqa: ANN401 -- upstream's own
        # Upstream would train one more step of a run that was saved after its last step.
        if not self.control.should_training_stop:
            super()._run_epoch(**arguments)


class CheckpointSaver(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Saves a run when a checkpoint is due, and restores the state of a resumed run."""

    def __init__(
        self,
        trainer: ResumableTrainerMixin,
        store: CheckpointStore,
        settings: Checkpoints,
        stop: StopHandler,
        emit: Callable[[Event], None],
    ) -> None:
        self.stateful_parts: dict[str, Stateful] = {}
        """Parts of the run with state, by name."""
        self.best_metric: float | None = None
        """Validation loss of the best weights, once they have been restored."""
        self._trainer = trainer
        self._store = store
        self._settings = settings
        self._stop = stop
        self._emit = emit
        self._start: Path | None = None
        self._epoch_rng_state: Tensor | None = None
        self._best: tuple[float | None, int | None] = (None, None)
        self._saved_at = self._seconds = 0.0
        self._saved_step = 0
        self._has_failed = False

    def train(self, start: Path | None) -> None:
        """Train to the end, from a checkpoint if there is one."""
        self._start = start
        # The first attempt has already evaluated the untrained model.
        self._trainer.args.eval_on_start &= start is None
        self._trainer.train(resume_from_checkpoint=str(start) if start else None)

    def on_train_begin(
        self, _args: object, state: TrainerState, control: TrainerControl, **_rest: object
    ) -> None:
        """Restore the counters. Runs after all other callbacks, because they reset theirs."""
        self._saved_at = time.monotonic()
        if self._start is not None:
            counters = trainer_state.read_counters(self._start, self._trainer.args.device)
            self._restore(counters, state, control)

    def on_epoch_begin(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        if self._epoch_rng_state is not None and self._start is not None:
            torch.set_rng_state(self._epoch_rng_state)
        self._start, self._epoch_rng_state = None, torch.get_rng_state()

    def on_step_end(
        self, _args: object, state: TrainerState, control: TrainerControl, **_rest: object
    ) -> None:
        control.should_save |= self._is_due(state.global_step)

    def on_evaluate(
        self, _args: object, _state: object, control: TrainerControl, **_rest: object
    ) -> None:
        control.should_save |= self._stop.requested == "pause"

    def on_save(
        self, _args: object, state: TrainerState, _control: object, **_rest: object
    ) -> None:
        if self._stop.requested != "pause":
            return
        if self._saved_step == state.global_step:
            raise StopRequested
        self._stop.requested = None

    def save(self) -> None:
        """Write a checkpoint. A failure harms neither the run nor older checkpoints."""
        state, started_at = self._trainer.state, time.monotonic()
        try:
            self._write(state)
        except (OSError, RuntimeError, SafetensorError, TrainingError) as error:
            self._report_failure(state.global_step, error)
            state.best_metric, state.best_global_step = self._best
        else:
            self._saved_step, self._has_failed = state.global_step, False
            self._best = (state.best_metric, state.best_global_step)
            self._report_saved(state.global_step, time.monotonic() - started_at)
            self._store.prune(self._settings.save_total_limit, state.best_global_step)
        finally:
            self._saved_at = time.monotonic()
            self._seconds = self._saved_at - started_at

    def load_best(self) -> None:
        """Restore the best weights, if their checkpoint is intact."""
        best_metric, step = self._best
        if step is None:
            return
        try:
            checksums.verify_folder(self._store.folder_for(step))
        except CorruptCheckpointError as error:
            self._alarm("broken_checkpoint", f"The best weights are lost: {error}.", step)
            return
        trainer_state.load_weights(self._trainer.model, self._store.folder_for(step))
        self.best_metric = best_metric

    def _is_due(self, step: int) -> bool:
        if self._stop.requested == "pause":
            return True
        if self._settings.save_steps is not None and step % self._settings.save_steps == 0:
            return True
        if self._settings.save_minutes is None:
            return False
        pause = max(self._settings.save_minutes * 60, self._seconds * SAVE_PAUSE_FACTOR)
        return time.monotonic() - self._saved_at >= pause

    def _write(self, state: TrainerState) -> None:
        trainer, step, best_step = self._trainer, state.global_step, state.best_global_step
        if broken := nonfinite_weights(trainer.model):
            raise TrainingError(
                "non_finite", f"Some weights are NaN or infinite, first {broken[0]}."
            )
        self._store.refuse_if_disk_full(trainer_state.state_bytes(trainer))
        if best_step == step:
            state.best_model_checkpoint = str(self._store.folder_for(step))
        with self._store.write(step, best_step) as folder:
            trainer_state.write_state(trainer, self._counters(state), folder)

    def _counters(self, state: TrainerState) -> dict[str, Any]:
        trainer = self._trainer
        # At the end of an epoch, the current RNG state is the one for the next epoch.
        rng_state = (
            torch.get_rng_state() if float(state.epoch).is_integer() else self._epoch_rng_state
        )
        return {
            "dice": rng_state,
            "is_over": trainer.control.should_training_stop and self._stop.requested != "keep",
            "loss": trainer._tr_loss,  # noqa: SLF001 -- no public name
            "logged_step": trainer._globalstep_last_logged,  # noqa: SLF001 -- the same
            "parts": {
                name: trainer_state.get_state(part) for name, part in self.stateful_parts.items()
            },
        }

    def _restore(
        self, counters: Mapping[str, Any], state: TrainerState, control: TrainerControl
    ) -> None:
        trainer = self._trainer
        self._epoch_rng_state = counters["dice"].cpu()
        control.should_training_stop |= counters["is_over"]
        trainer._tr_loss.copy_(counters["loss"])  # noqa: SLF001 -- no public name
        trainer._globalstep_last_logged = counters["logged_step"]  # noqa: SLF001 -- the same
        for name, part in self.stateful_parts.items():
            trainer_state.restore_state(part, counters["parts"].get(name, {}))
        self._saved_step = state.global_step
        step = state.best_global_step
        if step is not None and not self._store.folder_for(step).is_dir():
            state.best_metric = state.best_global_step = step = None
        # Build the path from the step, because the run's folder may have been moved.
        state.best_model_checkpoint = (
            str(self._store.folder_for(step)) if step is not None else None
        )
        self._best = (state.best_metric, step)

    def _report_saved(self, step: int, seconds: float) -> None:
        size = self._store.size_of(step)
        print(f"step {step} saved: {size / 1e6:,.1f} MB in {seconds:.2f} s", flush=True)  # noqa: T201 -- the run's own log
        self._emit(Checkpointed(step=step, bytes=size, seconds=seconds))

    def _report_failure(self, step: int, error: Exception) -> None:
        failure = exception_mapping.explain(error)
        print(f"step {step} not saved: {error}", flush=True)  # noqa: T201 -- the run's own log
        if not self._has_failed:
            self._alarm(
                "not_saved",
                f"Step {step} could not be saved. {failure.message}",
                step,
                failure.hint,
            )
        self._has_failed = True

    def _alarm(self, code: str, message: str, step: int, hint: str = "") -> None:
        self._emit(AlarmRaised(code=code, message=message, hint=hint, step=step))
