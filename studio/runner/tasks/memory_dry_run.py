"""A measurement without training: a step of a recipe gone through in shapes alone.

Its data are read, for the longest example decides; its model is never loaded.
"""

import shutil
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from torch._subclasses import fake_tensor
from transformers import PreTrainedModel
from transformers.utils import logging as upstream_logging

from studio.errors import InvalidError
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.task_dispatch import ReportProgress
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


def measure(folder: TaskDir, params: dict[str, Any], tell: ReportProgress) -> dict[str, Any]:
    """Return the bytes that a recipe's fullest step holds by part, and what decided them.

    Raises:
        InvalidError: what the model does next hangs on numbers that a dry run does not have.
        TrainingError: the recipe fails before its first step, as it would as a run.

    """
    tell("loading the packages", 0.0)
    upstream_logging.disable_progress_bar()
    recipe = RECIPE_ADAPTER.validate_python(params["recipe"], strict=False)
    run = RunDir(folder.files / "run")
    # A try before this one was killed.
    shutil.rmtree(run.root, ignore_errors=True)
    run.root.mkdir()
    run.job.write_text(params["job"], encoding="utf-8")
    mode = dry_run.make_fake_mode()
    try:
        job = TrainingJob.prepare(
            recipe, run, lambda phase: tell(*_PHASES[phase]), partial(_make_fake_model, mode)
        )
        tell("going through a step without numbers", 0.6)
        held = dry_run.simulate_steps(_build_plan(recipe, job), mode)
    except _DATA_DEPENDENT_ERRORS as error:
        raise InvalidError(
            "A dry run cannot follow this model: what it does next hangs on its numbers.",
            hint="Train a few steps to find out; that measures it too.",
        ) from error
    finally:
        shutil.rmtree(run.root)
    return _summarise(job, held)


_PHASES = {
    "loading": ("reading what the model is made of", 0.2),
    "tokenising": ("reading the data", 0.3),
}


def _make_fake_model(mode: fake_tensor.FakeTensorMode, *asked: Any) -> PreTrainedModel:  # noqa: ANN401 -- as `models.load_model` is asked
    with mode:
        return dry_run.make_fake_model(*asked)


def _build_plan(recipe: AnyRecipe, job: TrainingJob) -> DryRunPlan:
    method = import_module(f"studio.methods.{recipe.method}.trainer")
    # The trainer makes tensors of its data, and no step here looks at them.
    bare = replace(job, train=_first_example(job.train), validation=_first_example(job.validation))
    return DryRunPlan(
        build=partial(method.build, recipe, bare),
        mode=job.mode,
        train=_largest_batch(job.train, recipe.optimisation.per_device_train_batch_size),
        validate=_largest_batch(job.validation, recipe.evaluation.per_device_eval_batch_size),
    )


def _first_example(examples: Examples) -> Examples:
    packs = None if examples.packs is None else [[0]]
    return replace(examples, data=examples.data.select([0]), rows=examples.rows[:1], packs=packs)


def _largest_batch(examples: Examples, size: int) -> BatchShape:
    """Return the fullest batch there may be: all as long as the longest, with most to learn."""
    is_packed = examples.packs is not None
    count = min(size, examples.count)
    return BatchShape(count, examples.longest, examples.longest_answer, is_packed)


def _summarise(job: TrainingJob, held: dict[str, int]) -> dict[str, Any]:
    return {
        "at_peak": held,
        "longest_example": job.train.longest,
        "longest_answer": job.train.longest_answer,
        "train_rows": len(job.train.rows),
        "train_examples": job.train.count,
        "train_tokens": job.train.tokens,
    }
