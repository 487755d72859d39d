"""Runs that learn from a teacher, made without a network."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.methods.distil import DistilRecipe
from studio.methods.distil.comparison import TeacherTrainer
from studio.methods.distil.trainer import build
from studio.protocols.run_dir import JobSpec, RunDir
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.tiny import Changes, Row


def make_teacher(folder: Path, model: Path, **changes: object) -> Path:
    """Train a model on the sums for a while, and return it."""
    return tiny.train(folder, model, **{"optimisation__max_steps": 60, **changes}).artifacts


def write_run(
    root: Path,
    model: Path,
    teacher: Path | str,
    changes: Changes | None = None,
    rows: Sequence[Row] | None = None,
) -> RunDir:
    """Lay out a run that learns from a teacher."""
    settings = {"method": "distil", "distillation__teacher": "run-7", **(changes or {})}
    run = tiny.write_run(root, model, rows, **settings)
    spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
    spec = spec.model_copy(update={"teacher": str(teacher)})
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    return run


def train(
    root: Path,
    model: Path,
    teacher: Path | str,
    changes: Changes | None = None,
    rows: Sequence[Row] | None = None,
) -> RunDir:
    """Train a run in this process to its end."""
    run = write_run(root, model, teacher, changes, rows)
    execute_run(run.root, StopHandler())
    return run


def make_trainer(run: RunDir) -> TeacherTrainer:
    """Return the trainer of a run, before its first step."""
    recipe = load_recipe(run)
    assert isinstance(recipe, DistilRecipe)
    return build(recipe, TrainingJob.prepare(recipe, run, lambda _phase: None))


def loss_of(trainer: TeacherTrainer, batch: Mapping[str, Any]) -> float:
    """Return the loss of a batch."""
    return float(trainer.compute_loss(trainer.model, dict(batch)).detach())
