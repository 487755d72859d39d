"""The memory of runs with a teacher: the closed form and the dry run, held to real steps."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from studio.hardware import Gpu, Hardware
from studio.methods.distil import DistilRecipe
from studio.methods.distil.trainer import build
from studio.protocols.run_dir import RunDir
from studio.runner.training_run import load_recipe
from studio.services.estimates import host_memory, memory
from studio.services.estimates.activation_memory import BatchShape as Load
from studio.training.job import TrainingJob
from studio.training.memory import dry_run
from studio.training.memory.dry_run import BatchShape, DryRunPlan
from studio.training.models import loader
from studio.weights import model_facts
from tests.training import taught, tiny
from tests.training.memory import tiny_configs
from tests.training.memory.test_dry_run import dry
from tests.training.memory.test_memory import talk

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS, HELD_BACK = 20, 4
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "lora": {"precision": "bf16", "adapter__kind": "lora"},
    "lora in float32": {"precision": "fp32", "adapter__kind": "lora"},
    "narrow teacher": {"precision": "fp32", "distillation__teacher_dtype": "bfloat16"},
    "forward": {"precision": "fp32", "distillation__beta": 0.0},
    "both losses": {"precision": "fp32", "distillation__hard_weight": 0.5},
    "checkpointed": {"precision": "bf16", "optimisation__activation_checkpointing": True},
    "dual": {"precision": "bf16_dual"},
}


MACHINE = Hardware(
    processor="x",
    cores=8,
    memory_bytes=10**10,
    native_bf16=True,
    gpus=(Gpu(index=0, name="x", memory_bytes=10**10, capability=(9, 0)),),
    torch="2.13.0+cu130",
)


def write(folder: Path, hidden: int) -> Path:
    config = tiny_configs.config("llama", words=4096, hidden=hidden, inner=2 * hidden, layers=2)
    return tiny.write_model(folder, config)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a student, and a teacher that is wider."""
    folder = tmp_path_factory.mktemp("models")
    return write(folder / "student", 128), write(folder / "teacher", 256)


def make_run(folder: Path, models: tuple[Path, Path], way: str) -> RunDir:
    changes = {**WAYS[way], "numerics__health": False}
    run = taught.write_run(folder, *models, changes)
    tiny.write_rows(run.root / "train.jsonl", [talk(i) for i in range(ROWS)])
    return run


def plan(run: RunDir, load: Any) -> DryRunPlan:  # noqa: ANN401 -- upstream is untyped
    recipe = load_recipe(run)
    assert isinstance(recipe, DistilRecipe)
    job = TrainingJob.prepare(recipe, run, lambda _phase: None, load)
    size = recipe.optimisation.per_device_train_batch_size
    train, validate = (
        BatchShape(number, part.longest, part.longest_answer)
        for number, part in ((size, job.train), (4, job.validation))
    )
    return DryRunPlan(partial(build, recipe, job), job.mode, train, validate)


@pytest.mark.parametrize("way", WAYS)
def test_simulated_step_memory_equals_real_step_memory(
    models: tuple[Path, Path], tmp_path: Path, way: str
) -> None:
    run, mode = make_run(tmp_path / "run", models, way), dry_run.make_fake_mode()

    def imagined(*asked: Any) -> Any:  # noqa: ANN401 -- as upstream
        with mode:
            return dry_run.make_fake_model(*asked)

    simulated = dry_run.simulate_steps(plan(run, imagined), mode)
    assert simulated == dry_run.count_memory(plan(run, loader.load_model))
    bytes_each = 2 if way == "narrow teacher" else 4
    weights = bytes_each * model_facts.read(models[1]).parameters
    assert 0 <= simulated["teacher"] - weights < 1000, "The frequencies of positions, and no more."


@pytest.mark.parametrize("way", WAYS)
def test_formula_matches_dry_run(models: tuple[Path, Path], tmp_path: Path, way: str) -> None:
    run = make_run(tmp_path / "run", models, way)
    told, recipe = dry(tmp_path, run), load_recipe(run)
    student, teacher = map(model_facts.read, models)
    length, batch = told["longest_example"], recipe.optimisation.per_device_train_batch_size
    load = Load(batch, length, told["longest_answer"], ROWS - HELD_BACK, length, HELD_BACK)

    closed = memory.estimate(recipe, student, load, on_gpu=False, teacher=teacher)
    exact = memory.from_dry_run(recipe, student, load, told["at_peak"], on_gpu=False)
    assert closed is not None
    assert closed.teacher == pytest.approx(exact.teacher, rel=0.01)
    assert closed.total == pytest.approx(exact.total, rel=0.1)


def test_without_facts_of_the_teacher_there_is_no_estimate(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    recipe = load_recipe(make_run(tmp_path / "run", models, "fp32"))
    facts = model_facts.read(models[0])

    assert memory.estimate(recipe, facts, Load(4, 50, 20), on_gpu=False) is None


def test_host_holds_a_teacher_only_if_it_is_converted(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    student, teacher = map(model_facts.read, models)
    loading = [
        host_memory.estimate(
            load_recipe(make_run(tmp_path / way, models, way)),
            student,
            Load(4, 50, 20),
            MACHINE,
            teacher,
        )
        for way in ("fp32", "narrow teacher")
    ]

    assert loading[0] is not None
    assert loading[1] is not None
    assert loading[1].loading - loading[0].loading == 2 * teacher.parameters
