"""The starter learns from a teacher: the starter itself, after supervised fine-tuning."""

from pathlib import Path
from typing import Any

import pytest

from studio import starter
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import Finished
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe import yaml
from studio.recipe.dotted_keys import merge
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

RECIPE: dict[str, Any] = {
    "base_model": "starter",
    "dataset": "starter",
    "precision": "fp32",
    "optimisation": {"learning_rate": 3e-3, "max_steps": 60, "per_device_train_batch_size": 32},
    "adapter": {"kind": "full"},
    "data": {"max_length": 256},
    "evaluation": {"eval_steps": 60, "per_device_eval_batch_size": 64},
    "samples": {"prompts": 0},
}
STUDENT: dict[str, Any] = {
    "method": "distil",
    "distillation": {"teacher": "run-1"},
    "optimisation": {"max_steps": 50},
    "evaluation": {"eval_steps": 50},
}
"""Seeds 42, 1 and 2 lowered the divergence from 0.414 to 0.141, 0.145 and 0.166, the cross-entropy
from 5.40 to 2.79, 2.97 and 3.17, and raised the agreement from 32 % to 69, 71 and 68 %."""


def train(root: Path, model: Path, changes: dict[str, Any], teacher: str = "") -> RunDir:
    run = RunDir(root)
    root.mkdir()
    starter.write_rows(root)
    recipe = RECIPE_ADAPTER.validate_python(merge(RECIPE, changes), strict=False)
    run.recipe.write_text(yaml.dump(recipe), encoding="utf-8")
    train_rows, validation = (root / f"{split}.jsonl" for split in ("train", "validation"))
    spec = JobSpec(
        run_id=1,
        name="x",
        model=str(model),
        train=train_rows,
        validation=validation,
        teacher=teacher,
    )
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    execute_run(run.root, StopHandler())
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return run


def test_starter_learns_from_a_run(starter_model: Path, tmp_path: Path) -> None:
    teacher = train(tmp_path / "teacher", starter_model, {"method": "sft"})
    run = train(tmp_path / "student", starter_model, STUDENT, str(teacher.artifacts))

    divergence = tiny.metric_values(run, "eval_loss")
    agreement = tiny.metric_values(run, "eval_teacher_agreement_share")
    cross_entropy = tiny.metric_values(run, "eval_cross_entropy")
    assert divergence[-1] < 0.5 * divergence[0]
    assert agreement[-1] > agreement[0] + 0.25
    assert cross_entropy[-1] < 0.7 * cross_entropy[0]
