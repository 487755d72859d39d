"""The stages of a run, in order: prepare, generate answers, train, generate again, save."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from platform import python_version
from types import ModuleType
from typing import Any

import torch
from transformers import PreTrainedModel, PrinterCallback, Trainer
from transformers.utils import logging as upstream_logging

from studio import __version__, hardware, run_manifest
from studio.errors import TrainingError
from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe
from studio.protocols.events import (
    Event,
    Finished,
    PhaseChanged,
    Resumed,
    Sampled,
    SampleStage,
    Stopped,
)
from studio.protocols.run_dir import MANIFEST, JobSpec, RunDir
from studio.recipe import yaml
from studio.recipe.base import Recipe
from studio.training import artifacts, model_card, reward_models, sentence_files, time_limit
from studio.training.checkpoints import trainer_state
from studio.training.checkpoints.resume import CheckpointSaver
from studio.training.checkpoints.store import CheckpointStore
from studio.training.checkpoints.trainer_state import Stateful
from studio.training.data import image_messages, packed_dataset
from studio.training.evaluation.image_files import ImageFiles
from studio.training.evaluation.sample_answers import AnswerSampler, SampleCallback
from studio.training.job import TrainingJob
from studio.training.memory import process_memory
from studio.training.models import quantised_weights, weight_formats
from studio.training.models.eval_context import keep_forward_wrappers
from studio.training.monitoring.divergence_guard import (
    DivergenceGuard,
    nonfinite_weights,
    refuse_nonfinite_base,
    refuse_nonfinite_teacher,
    refuse_nonfinite_weights,
)
from studio.training.monitoring.numeric_health import NumericHealth
from studio.training.monitoring.reporter import Reporter
from studio.training.precision.verification import PrecisionVerifier
from studio.training.stop_handler import StopHandler
from studio.weights import model_metadata

EmitEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    event: Event
    """The run's last event."""
    keeps_checkpoints: bool


def train(run: RunDir, emit: EmitEvent, stop: StopHandler, began: float) -> Outcome:
    """Train a run from its recipe or its newest checkpoint, and write its artifacts.

    `began` is the `time.monotonic()` from which the run's time limit counts.
    """
    upstream_logging.disable_progress_bar()
    stages = prepare(run, emit, stop)
    sampling_since = time.monotonic()
    samples = stages.sample_before()
    stages.limit_time(began, time.monotonic() - sampling_since)
    stages.set_phase("training")
    stages.train()
    with stop.cancelling_allowed():
        samples += stages.sample("after")
        metrics = stages.reporter.results()
        stages.save_artifacts(samples, metrics)
    return stages.outcome(metrics)


def prepare(run: RunDir, emit: EmitEvent, stop: StopHandler) -> "TrainingRun":
    """Load, tokenise and build everything the first step needs."""
    with stop.stopping_allowed():
        recipe = load_recipe(run)
        _download_models(JobSpec.read(run))
        store = CheckpointStore(run.checkpoints, recipe)
        start = _find_checkpoint(run, store, emit, stop)
        # Imported before the model loads, so that its packages do not count as memory of the run.
        method = import_module(f"studio.methods.{recipe.method}.trainer")
        job = _load(recipe, run, method, emit)
        trainer = method.build(recipe, job)
        if recipe.data.packing:
            _refuse_cross_contamination(job, trainer)
        trainer.score_reference(lambda phase: _set_phase(emit, phase))
    verifier = PrecisionVerifier(trainer, job.plan)
    trainer.guard = _build_guard(recipe, job, trainer)
    resolve = partial(_collect_resolved, trainer, verifier, job, recipe)
    reporter = Reporter(
        emit, stop, trainer.guard, job.memory_probe, METHODS[recipe.method].metrics, resolve
    )
    trainer.remove_callback(PrinterCallback)
    for callback in (verifier, trainer.guard, reporter):
        trainer.add_callback(callback)
    trainer.saver = CheckpointSaver(trainer, store, recipe.checkpoints, stop, emit)
    trainer.add_callback(trainer.saver)
    parts = (*trainer.callback_handler.callbacks, *trainer.accumulators, reporter.throughput)
    trainer.saver.stateful_parts = {
        part.SAVED_AS: part for part in parts if isinstance(part, Stateful)
    }
    # Everything loaded so far stays, so exclude it from garbage collection.
    gc.freeze()
    gc.enable()
    process_memory.release_free_memory()
    stages = TrainingRun(recipe, job, trainer, reporter, emit, stop, start)
    trainer.add_callback(
        SampleCallback(recipe.samples.between, stages.sample_during, reporter.throughput)
    )
    return stages


def _load(recipe: AnyRecipe, run: RunDir, method: ModuleType, emit: EmitEvent) -> TrainingJob:
    """Load and tokenise what the recipe names, and the models that score answers."""
    job = TrainingJob.prepare(
        recipe,
        run,
        lambda phase: _set_phase(emit, phase),
        tokenise=method.tokenise,
        choose_head=getattr(method, "choose_head", None),
        kinds=METHODS[recipe.method].trainable_kinds,
    )
    refuse_nonfinite_base(job.model, job.spec.model)
    if job.teacher is not None:
        refuse_nonfinite_teacher(job.teacher)
    judges = reward_models.load_all(job.spec.reward_models, [*recipe.reward_models])
    return replace(job, reward_models=judges)


def _download_models(spec: JobSpec) -> None:
    judges = [judge.model.model for judge in spec.reward_models.values()]
    for name in filter(None, (spec.model, spec.teacher, *judges)):
        weight_formats.download_weights(name)


def _refuse_cross_contamination(job: TrainingJob, trainer: Trainer) -> None:
    with trainer.compute_loss_context_manager():
        packed_dataset.refuse_cross_contamination(job.model)
    if job.teacher is not None:
        packed_dataset.refuse_cross_contamination(job.teacher)


def load_recipe(run: RunDir) -> AnyRecipe:
    values = yaml.load(run.recipe.read_text(encoding="utf-8"))
    return RECIPE_ADAPTER.validate_python(values, strict=False)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    recipe: AnyRecipe
    job: TrainingJob
    trainer: Trainer
    reporter: Reporter
    emit: EmitEvent
    stop: StopHandler
    start: Path | None
    """The checkpoint to resume from."""

    def set_phase(self, phase: str) -> None:
        _set_phase(self.emit, phase)

    def train(self) -> None:
        """Train, and check that the resulting model is usable."""
        try:
            self.trainer.saver.train(self.start)
        except TrainingError as error:
            if error is self.trainer.guard.stop_error:
                # No broken step was applied: the user can inspect and resume from this state.
                self.trainer.saver.save()
                if self.recipe.numerics.guard == "rollback":
                    self._save_last_good(error)
            raise
        refuse_nonfinite_weights(self._model)
        self._refuse_mostly_skipped()
        if (best := self.trainer.saver.best_metric) is not None:
            self.reporter.last[METHODS[self.recipe.method].objective.key] = best

    def _refuse_mostly_skipped(self) -> None:
        try:
            self.trainer.guard.refuse_mostly_skipped(self.trainer.state.global_step)
        except TrainingError as error:
            if self.recipe.numerics.guard == "rollback":
                self._save_last_good(error)
            raise

    def limit_time(self, began: float, answer_seconds: float) -> None:
        """Set the number of steps that fit into the time limit, if the recipe has one.

        A run that resumes keeps the number it began with.
        """
        minutes, trainer = self.recipe.optimisation.max_minutes, self.trainer
        if minutes is None:
            return
        if self.start is not None:
            trainer.args.max_steps = trainer_state.read_max_steps(self.start)
            return
        self.set_phase("timing")
        with self.stop.stopping_allowed():
            pace = time_limit.measure_pace(trainer, answer_seconds)
        left = began + minutes * 60 - time.monotonic()
        fitting = time_limit.count_steps(self.recipe, pace, left)
        trainer.args.max_steps = min(fitting, time_limit.count_without_limit(trainer))
        print(fitting, pace, flush=True)  # noqa: T201 -- the run's own log

    def sample_before(self) -> list[Sampled]:
        """Generate answers before training. A resumed run reuses the stored ones."""
        if self.start is None:
            with self.stop.stopping_allowed():
                return self.sample("before")
        events = [
            event for event in self.job.run_dir.events.read()[0] if isinstance(event, Sampled)
        ]
        before = {event.position: event for event in events if event.stage == "before"}
        return [before[position] for position in sorted(before)]

    def sample_during(self) -> None:
        if self.sample("during"):
            self.set_phase("training")

    def sample(self, stage: SampleStage) -> list[Sampled]:
        settings = self.recipe.samples
        if not settings.prompts:
            return []
        self.set_phase("answering")
        # A row may have become several examples.
        rows = {row.number: row for row in self.job.validation.rows}
        sampler = AnswerSampler(
            list(rows.values())[: settings.prompts],
            self.job.template,
            self.job.tokenizer,
            settings.max_new_tokens,
            has_expected=self.recipe.has_expected_answers,
            max_length=self.recipe.data.max_length,
            arguments=self.job.generation,
            images=self._find_images(),
        )
        step = self.trainer.state.global_step
        autocast = self.job.answer_autocast(self.trainer.args.device)
        with keep_forward_wrappers(self.trainer.model), autocast:
            samples = list(sampler.generate(self._model, stage, step))
        for sample in samples:
            self.emit(sample)
        return samples

    def _find_images(self) -> ImageFiles | None:
        if self.job.images is None:
            return None
        return ImageFiles(image_messages.folder_of(self.job.spec.train), self.job.images)

    def save_artifacts(self, samples: list[Sampled], metrics: dict[str, float]) -> None:
        self.set_phase("saving")
        resolved = self.reporter.resolved
        with artifacts.atomic_folder(self.job.run_dir.artifacts) as folder:
            artifacts.write_model(folder, self._model, self.job)
            if vectors := self.recipe.vectors:
                length = self.recipe.data.max_length
                sentence_files.write(folder, vectors, self._model.config, length)
            artifacts.write_records(folder, self.job, samples, {**metrics, "resolved": resolved})
            text = model_card.build_run_card(
                self.job.spec.name,
                self.recipe,
                resolved,
                metrics,
                samples,
                self._stopped_early_note,
            )
            (folder / "README.md").write_text(text, encoding="utf-8")
            self._write_manifest(folder, metrics)

    def _write_manifest(self, folder: Path, metrics: dict[str, float]) -> None:
        """Write the manifest of the folder's files; written last, because it lists them."""
        recipe = self.recipe.model_dump(mode="json")
        draft = run_manifest.build_manifest(self.job.spec, recipe, self.reporter.resolved, metrics)
        location, config = self.job.spec.model, self._model.config
        origin = model_metadata.read_origin(Path(location))
        revision = origin.commit if origin else getattr(config, "_commit_hash", None)
        manifest = run_manifest.finish_manifest(
            draft,
            location=location,
            revision=revision,
            folder=folder,
            teacher=self.job.spec.teacher,
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2), encoding="utf-8")

    def outcome(self, metrics: dict[str, float]) -> Outcome:
        step = self.trainer.state.global_step
        stopped = Stopped(step=step, kept=True, metrics=metrics)
        event = stopped if self.reporter.stopped_early else Finished(metrics=metrics)
        return Outcome(event, self.recipe.checkpoints.keep_after_success)

    def _save_last_good(self, error: TrainingError) -> None:
        """Save the weights of a run that its guard stopped: no broken step was applied."""
        if nonfinite_weights(self._model):
            return
        self.set_phase("saving")
        with (
            artifacts.atomic_folder(self.job.run_dir.artifacts) as folder,
            self.stop.cancelling_allowed(),
        ):
            last_good = folder / artifacts.LAST_GOOD
            last_good.mkdir()
            artifacts.write_model(last_good, self._model, self.job)
            step = self.trainer.state.global_step
            artifacts.write_records(
                last_good, self.job, [], {"step": step, "failure": error.message}
            )
            text = model_card.build_failure_card(self.job.spec.name, step, error.message)
            (last_good / "README.md").write_text(text, encoding="utf-8")

    @property
    def _stopped_early_note(self) -> str:
        if not self.reporter.stopped_early:
            return ""
        state = self.trainer.state
        return f"Training was stopped by hand at step {state.global_step} of {state.max_steps}."

    @property
    def _model(self) -> PreTrainedModel:
        """The model as loaded, without the autocast wrapper that training adds."""
        trainer = self.trainer
        return trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)


def _find_checkpoint(
    run: RunDir, store: CheckpointStore, emit: EmitEvent, stop: StopHandler
) -> Path | None:
    """Return the checkpoint to resume from, if the run should resume and there is one."""
    spec = JobSpec.read(run)
    if not spec.resume:
        store.clear()
        return None
    checkpoint = store.newest_valid(emit)
    stop.step = checkpoint.step if checkpoint else 0
    message = (
        f"resuming from step {stop.step}" if checkpoint else "no checkpoint: starting from scratch"
    )
    print(message, flush=True)  # noqa: T201 -- the run's own log
    emit(Resumed(step=stop.step, attempt=spec.attempt))
    return checkpoint.folder if checkpoint else None


def _build_guard(recipe: Recipe, job: TrainingJob, trainer: Trainer) -> DivergenceGuard:
    health = NumericHealth(trainer) if recipe.numerics.health else None
    if health is not None:
        trainer.add_callback(health)
    return DivergenceGuard(recipe.numerics.guard, job.mode, trainer, health)


def _set_phase(emit: EmitEvent, phase: str) -> None:
    print(phase, flush=True)  # noqa: T201 -- the run's own log
    emit(PhaseChanged(name=phase))


_RESOLVED_FORMATS = ("weights", "compute", "gradients", "optimizer_states", "scaler")


def _collect_resolved(
    trainer: Trainer, verifier: PrecisionVerifier, job: TrainingJob, recipe: Recipe
) -> dict[str, Any]:
    """Collect the formats and settings in effect, as measured."""
    parameters = list(trainer.model.parameters())
    args = trainer.args
    formats = verifier.to_dict()
    audit = formats["audit"]
    return {
        **{name: audit[name] for name in _RESOLVED_FORMATS},
        **formats,
        **({"rounded": job.rounding} if job.rounding else {}),
        **({"head": job.head} if job.head else {}),
        "device": args.device.type,
        "device_name": _device_name(args.device),
        "attention": trainer.model.config._attn_implementation,  # noqa: SLF001 -- no public name
        "parameters": sum(map(quantised_weights.count_parameters, parameters)),
        "weight_bytes": quantised_weights.stored_bytes(trainer.model),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        **({"activations": "host"} if recipe.optimisation.activation_offloading else {}),
        "effective_batch_size": args.train_batch_size * args.gradient_accumulation_steps,
        "train_rows": len(job.train.rows),
        "train_examples": job.train.count,
        "validation_rows": len(job.validation.rows),
        "dropped_rows": job.train.dropped + job.validation.dropped,
        "truncated_rows": job.train.truncated + job.validation.truncated,
        **trainer.facts,
        "train_tokens": job.train.tokens,
        "longest_example": job.train.longest,
        "longest_answer": job.train.longest_answer,
        **({"steps_in_time": trainer.state.max_steps} if recipe.optimisation.max_minutes else {}),
        **job.memory_probe.to_dict(),
        "versions": {"mantissa-studio": __version__, "python": python_version()}
        | hardware.package_versions(),
        "seed": recipe.optimisation.seed,
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return hardware.detect().processor
