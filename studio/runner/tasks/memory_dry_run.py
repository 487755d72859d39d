"""Measure the memory of a recipe without training: simulate a step on shapes alone.

The data is read, because the longest example decides; the model's weights are never loaded.
"""

import shutil
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from torch._subclasses import fake_tensor
from transformers import PreTrainedModel
from transformers.utils import logging as upstream_logging

from studio.errors import InvalidError
from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe, count_sequences
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.training.data.tokenisation import Examples
from studio.training.job import TrainingJob
from studio.training.memory import dry_run
from studio.training.memory.dry_run import BatchShape, DryRunPlan

_DATA_DEPENDENT_ERRORS = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
)


def measure(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Return the bytes that a recipe's largest step holds, by part, and the data that decides them.

    Raises:
        InvalidError: the model's control flow depends on values that a dry run does not compute.
        TrainingError: the recipe fails before its first step, as it would in a run.

    """
    report("loading the packages", 0.0)
    upstream_logging.disable_progress_bar()
    recipe = RECIPE_ADAPTER.validate_python(params["recipe"], strict=False)
    run = RunDir(folder.files / "run")
    # A previous try may have been killed.
    shutil.rmtree(run.root, ignore_errors=True)
    run.root.mkdir()
    run.job.write_text(params["job"], encoding="utf-8")
    mode = dry_run.make_fake_mode()
    method = import_module(f"studio.methods.{recipe.method}.trainer")
    try:
        job = TrainingJob.prepare(
            recipe,
            run,
            lambda phase: report(*_PHASES[phase]),
            partial(_make_fake_model, mode),
            method.tokenise,
            getattr(method, "choose_head", None),
            kinds=METHODS[recipe.method].trainable_kinds,
        )
        recipe = recipe.with_negatives(max(len(row.pair) for row in job.train.rows) - 2)
        report("simulating a step", 0.6)
        bytes_by_part = dry_run.simulate_steps(_build_plan(recipe, job, method), mode)
    except _DATA_DEPENDENT_ERRORS as error:
        raise InvalidError(
            "A dry run cannot simulate this model: its control flow depends on computed values.",
            hint="Run a calibration instead: it trains a few steps and measures memory, too.",
        ) from error
    finally:
        shutil.rmtree(run.root)
    return _summarise(job, bytes_by_part)


_PHASES = {
    "loading": ("reading the model's config", 0.2),
    "tokenising": ("reading the data", 0.3),
}


def _make_fake_model(mode: fake_tensor.FakeTensorMode, *arguments: Any) -> PreTrainedModel:  # noqa: ANN401 -- the arguments of `load_model`
    with mode:
        return dry_run.make_fake_model(*arguments)


def _build_plan(recipe: AnyRecipe, job: TrainingJob, method: ModuleType) -> DryRunPlan:
    # The trainer converts its data to tensors, and no simulated step reads them.
    bare = replace(job, train=_first_example(job.train), validation=_first_example(job.validation))
    largest = partial(_largest_batch, recipe)
    return DryRunPlan(
        build=partial(method.build, recipe, bare),
        mode=job.mode,
        train=largest(job.train, recipe.optimisation.per_device_train_batch_size),
        validate=largest(job.validation, recipe.evaluation.per_device_eval_batch_size),
    )


def _first_example(examples: Examples) -> Examples:
    packs = None if examples.packs is None else [[0]]
    return replace(examples, data=examples.data.select([0]), rows=examples.rows[:1], packs=packs)


def _largest_batch(recipe: AnyRecipe, examples: Examples, size: int) -> BatchShape:
    """Return the largest possible batch: every sequence has the maximal length and answer."""
    is_packed = examples.packs is not None
    count = count_sequences(recipe, min(size, examples.count))
    length, answer = examples.longest, examples.longest_answer
    if recipe.answer_tokens:
        length, answer = length + recipe.answer_tokens, recipe.answer_tokens
    return BatchShape(count, length, answer, is_packed)


def _summarise(job: TrainingJob, bytes_by_part: dict[str, int]) -> dict[str, Any]:
    return {
        "at_peak": bytes_by_part,
        "longest_example": job.train.longest,
        "longest_answer": job.train.longest_answer,
        "train_rows": len(job.train.rows),
        "train_examples": job.train.count,
        "train_tokens": job.train.tokens,
    }
