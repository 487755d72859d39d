"""Memory of models that read images: a real step, a dry run, and the closed form."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.methods.vision import METHOD, VisionRecipe
from studio.methods.vision.trainer import build, tokenise
from studio.protocols.run_dir import RunDir
from studio.runner.training_run import load_recipe
from studio.services.estimates import memory
from studio.training.data import image_messages
from studio.training.job import TrainingJob
from studio.training.memory import dry_run
from studio.training.memory.dry_run import BatchShape, DryRunPlan
from studio.training.models import loader
from studio.weights import model_facts
from tests.support.vision_models import (
    VISION_FAMILIES,
    VisionFamily,
    colour_rows,
    write_vision_model,
)
from tests.training import tiny
from tests.training.memory.test_dry_run import dry
from tests.training.tiny import Changes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WAYS: dict[str, Changes] = {
    f"{mode}_{kind}": {"precision": mode, "adapter__kind": kind}
    for mode in ("fp32", "bf16")
    for kind in ("full", "lora")
}
TRAINED: Changes = {"vision__freeze_tower": False, "vision__freeze_projector": False}
BATCH = 8


@pytest.fixture(scope="module", params=VISION_FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family: VisionFamily = request.param
    return write_vision_model(tmp_path_factory.mktemp("models") / family, family, words=4096)


def write_run(root: Path, model: Path, changes: Changes) -> RunDir:
    """Lay out a run on long rows of the same length, with images of one size."""
    settings: Changes = {"optimisation__per_device_train_batch_size": BATCH} | changes
    run = tiny.write_run(root, model, (), method="vision", data__max_length=512, **settings)
    rows = colour_rows(root / image_messages.FOLDER, 24, sizes=((96, 96),))
    for row in rows:
        row["messages"][0]["content"] *= 12
        row["messages"][1]["content"] = "red " * 8
    tiny.write_rows(root / "train.jsonl", rows)
    return run


def plan(run: RunDir, load: Any) -> DryRunPlan:  # noqa: ANN401 -- upstream is untyped
    recipe = load_recipe(run)
    assert isinstance(recipe, VisionRecipe)
    job = TrainingJob.prepare(
        recipe, run, lambda _phase: None, load, tokenise, kinds=METHOD.trainable_kinds
    )
    train, validate = (
        BatchShape(number, part.longest, part.longest_answer)
        for number, part in ((BATCH, job.train), (4, job.validation))
    )
    return DryRunPlan(partial(build, recipe, job), job.mode, train, validate)


def estimated(run: RunDir, model: Path, measured: DryRunPlan) -> dict[str, int] | None:
    shape = {
        "train_rows": 20,
        "train_examples": 20,
        "validation_rows": 4,
        "longest_example": measured.train.length,
        "longest_answer": measured.train.answer_length,
        "train_tokens": 20 * measured.train.length,
    }
    recipe = load_recipe(run)
    load = memory.batch_shape(recipe, shape)
    breakdown = memory.estimate(recipe, model_facts.read(model), load, on_gpu=False)
    return breakdown.parts if breakdown else None


@pytest.mark.parametrize("way", WAYS)
def test_formula_matches_a_real_step(way: str, model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model, WAYS[way])
    measuring = plan(run, loader.load_model)
    measured = dry_run.count_memory(measuring)
    parts = estimated(run, model, measuring)

    assert parts is not None
    expected = {name: size for name, size in parts.items() if name in measured}
    for name in ("weights", "adapter", "optimizer"):
        assert expected.get(name, 0) == pytest.approx(measured.get(name, 0), rel=0.02), name
    tensors = ("runtime", "examples", "holes")
    total = sum(size for name, size in parts.items() if name not in tensors)
    assert total == pytest.approx(sum(measured.values()), rel=0.1)


def test_trained_tower_gets_no_estimate_but_a_dry_run_or_a_calibration(
    model: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", model, TRAINED)
    measuring = plan(run, loader.load_model)

    assert estimated(run, model, measuring) is None
    frozen = plan(write_run(tmp_path / "frozen", model, {}), loader.load_model)
    trained, kept = (sum(dry_run.count_memory(one).values()) for one in (measuring, frozen))
    assert trained > kept


def test_dry_run_equals_a_real_step_or_says_why_not(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model, WAYS["fp32_full"])
    family = json.loads((model / "config.json").read_text(encoding="utf-8"))["model_type"]
    if family != "llava":
        # Positions of its images depend on values.
        with pytest.raises(InvalidError, match="cannot simulate this model"):
            dry(tmp_path, run)
        return
    simulated = dry(tmp_path, run)["at_peak"]

    measured = dry_run.count_memory(plan(run, loader.load_model))
    assert sum(simulated.values()) == pytest.approx(sum(measured.values()), rel=0.05)
