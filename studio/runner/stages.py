"""The stages of a run, in order: prepare, answer, train, answer again, save."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from platform import python_version
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PrinterCallback, Trainer
from transformers.utils import logging as upstream_logging

from studio import __version__, hardware, manifest
from studio.errors import TrainingError
from studio.events import Event, Phase, Sampled
from studio.methods import RECIPES, AnyRecipe
from studio.recipe import yaml
from studio.recipe.base import Recipe
from studio.rundir import MANIFEST, RunDir
from studio.training import artifacts, card, quantised
from studio.training.guard import Guard, broken_weights, refuse_broken_weights
from studio.training.health import Health
from studio.training.job import Job
from studio.training.precision import PrecisionWatch
from studio.training.reporter import Reporter
from studio.training.samples import Sampler
from studio.training.stopping import Stop

Say = Callable[[Event], None]


def train(run: RunDir, say: Say, stop: Stop) -> dict[str, float]:
    """Train a run from its recipe to its artifacts. Return what came of it, in numbers."""
    upstream_logging.disable_progress_bar()
    stages = prepare(run, say, stop)
    samples = stages.answer("before")
    stages.enter("training")
    stages.learn()
    samples += stages.answer("after")
    stages.save(samples)
    return stages.reporter.results()


def prepare(run: RunDir, say: Say, stop: Stop) -> "Stages":
    """Load, tokenise and build whatever the first step needs."""
    with stop.at_once():
        recipe = recipe_of(run)
        job = Job.prepare(recipe, run, lambda phase: _enter(say, phase))
        trainer = import_module(f"studio.methods.{recipe.method}.trainer").build(recipe, job)
    watch = PrecisionWatch(trainer, job.plan)
    trainer.guard = _guard(recipe, job, trainer)
    resolve = partial(_resolved, trainer, watch, job, recipe)
    reporter = Reporter(say, stop, watch, trainer.guard, job.gauge, resolve)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch)
    trainer.add_callback(reporter)
    # What is loaded stays: the garbage collector need not look through it again and again.
    gc.freeze()
    gc.enable()
    return Stages(recipe, job, trainer, reporter, say, stop)


def recipe_of(run: RunDir) -> AnyRecipe:
    values = yaml.load(run.recipe.read_text(encoding="utf-8"))
    return RECIPES.validate_python(values, strict=False)


@dataclass(frozen=True, slots=True)
class Stages:
    recipe: Recipe
    job: Job
    trainer: Trainer
    reporter: Reporter
    say: Say
    stop: Stop

    def enter(self, phase: str) -> None:
        _enter(self.say, phase)

    def learn(self) -> None:
        """Train, and see to it that what came of it can be used."""
        try:
            self.trainer.train()
        except TrainingError as why:
            if self.recipe.numerics.guard == "rollback" and why is self.trainer.guard.ended_by:
                self._rescue(why)
            raise
        refuse_broken_weights(self._model)

    def answer(self, stage: Literal["before", "after"]) -> list[Sampled]:
        knobs = self.recipe.samples
        if not knobs.prompts:
            return []
        self.enter("answering")
        chosen = self.job.validation.conversations[: knobs.prompts]
        with self.stop.at_once():
            sampler = Sampler(chosen, self.job.template, self.job.tokenizer, knobs.max_new_tokens)
            step = self.trainer.state.global_step
            samples = list(sampler.answer(self._model, stage, step))
        for sample in samples:
            self.say(sample)
        return samples

    def save(self, samples: list[Sampled]) -> None:
        self.enter("saving")
        facts, metrics = self.reporter.resolved, self.reporter.results()
        with artifacts.whole(self.job.dir.artifacts) as folder, self.stop.at_once():
            artifacts.write_model(folder, self._model, self.job)
            artifacts.write_records(folder, self.job, samples, {**metrics, "resolved": facts})
            text = card.write(self.job.spec.name, self.recipe, facts, metrics, samples)
            (folder / "README.md").write_text(text, encoding="utf-8")
            self._write_manifest(folder)

    def _write_manifest(self, folder: Path) -> None:
        """Write what the folder's files are and how they came about; last, for it names them."""
        recipe = self.recipe.model_dump(mode="json")
        known = manifest.of(self.job.spec, recipe, self.reporter.resolved, self.reporter.results())
        location, config = self.job.spec.model, self._model.config
        revision = getattr(config, "_commit_hash", None)
        whole = manifest.finished(known, location=location, revision=revision, folder=folder)
        (folder / MANIFEST).write_text(whole.model_dump_json(indent=2), encoding="utf-8")

    def _rescue(self, why: TrainingError) -> None:
        """Keep the weights of a run that its guard has ended: no step that broke was taken."""
        if broken_weights(self._model):
            return
        self.enter("saving")
        with artifacts.whole(self.job.dir.artifacts) as folder, self.stop.at_once():
            good = folder / artifacts.LAST_GOOD
            good.mkdir()
            artifacts.write_model(good, self._model, self.job)
            step = self.trainer.state.global_step
            artifacts.write_records(good, self.job, [], {"step": step, "failure": why.message})
            text = card.write_of_failure(self.job.spec.name, step, why.message)
            (good / "README.md").write_text(text, encoding="utf-8")

    @property
    def _model(self) -> PreTrainedModel:
        """The model as loaded: without the autocast that training wrapped around it."""
        trainer = self.trainer
        return trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)


def _guard(recipe: Recipe, job: Job, trainer: Trainer) -> Guard:
    health = Health(trainer) if recipe.numerics.health else None
    if health is not None:
        trainer.add_callback(health)
    return Guard(recipe.numerics.guard, job.mode, trainer, health)


def _enter(say: Say, phase: str) -> None:
    print(phase, flush=True)  # noqa: T201 -- the run's own log
    say(Phase(name=phase))


_FORMATS = ("weights", "compute", "gradients", "optimizer_states", "scaler")


def _resolved(trainer: Trainer, watch: PrecisionWatch, job: Job, recipe: Recipe) -> dict[str, Any]:
    """Gather what really runs, as measured."""
    parameters = list(trainer.model.parameters())
    args = trainer.args
    told = watch.told()
    found = told["audit"]
    return {
        **{name: found[name] for name in _FORMATS},
        **told,
        "device": args.device.type,
        "device_name": _device_name(args.device),
        "attention": trainer.model.config._attn_implementation,  # noqa: SLF001 -- no public name
        "parameters": sum(map(quantised.count, parameters)),
        "weight_bytes": quantised.stored_bytes(trainer.model),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "effective_batch_size": args.train_batch_size * args.gradient_accumulation_steps,
        "train_rows": len(job.train.conversations),
        "validation_rows": len(job.validation.conversations),
        "dropped_rows": job.train.dropped + job.validation.dropped,
        "truncated_rows": job.train.truncated + job.validation.truncated,
        "train_tokens": job.train.tokens,
        "longest_example": job.train.longest,
        "longest_answer": job.train.longest_answer,
        **job.gauge.told(),
        "versions": {"mantissa-studio": __version__, "python": python_version()}
        | hardware.versions(),
        "seed": recipe.optimisation.seed,
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return hardware.detect().processor
