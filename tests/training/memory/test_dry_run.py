"""A dry run, against the same step on real tensors, and against what a run measures."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from studio.methods.sft import SFTRecipe
from studio.methods.sft.trainer import build
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.services.estimates import memory
from studio.training.job import TrainingJob
from studio.training.memory import dry_run
from studio.training.memory.dry_run import BatchShape, DryRunPlan
from studio.training.models import loader
from studio.weights import model_facts
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

NARROW: dict[str, Any] = {
    "precision": "bf16",
    "adapter__kind": "lora",
    "adapter__base_dtype": "bfloat16",
}
WAYS: dict[str, dict[str, Any]] = {
    f"{mode}_{kind}": {"precision": mode, "adapter__kind": kind}
    for mode in ("fp32", "bf16", "fp16", "fp32_bf16_matmul")
    for kind in ("full", "lora")
} | {
    **{mode: {"precision": mode} for mode in ("bf16_pure", "bf16_dual", "bf16_stochastic")},
    "bf16_kahan": {"precision": "bf16_kahan"},
    "narrow_base": NARROW,
    "checkpointed": {"precision": "bf16", "optimisation__activation_checkpointing": True},
    "added_up": {"precision": "fp32", "optimisation__gradient_accumulation_steps": 3},
    "plain_adamw": {"precision": "fp32", "optimisation__optim": "adamw_torch"},
    "adafactor": {"precision": "fp32", "optimisation__optim": "adafactor"},
    "sgd": {"precision": "fp32", "optimisation__optim": "sgd"},
    "alone": {"precision": "fp32", "optimisation__per_device_train_batch_size": 1},
    "packed": {"precision": "bf16", "data__packing": True, "data__max_length": 90},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("dry") / "model", tiny.llama())


@pytest.mark.parametrize("way", WAYS)
def test_simulated_step_memory_equals_real_step_memory(
    model: Path, tmp_path: Path, way: str
) -> None:
    run = tiny.write_run(tmp_path / "run", model, **WAYS[way])
    mode = dry_run.make_fake_mode()

    def imagined(*asked: Any) -> Any:  # noqa: ANN401 -- as upstream
        with mode:
            return dry_run.make_fake_model(*asked)

    assert dry_run.simulate_steps(plan(run, imagined), mode) == dry_run.count_memory(
        plan(run, loader.load_model)
    )


def test_shared_weights_are_counted_once(tmp_path: Path) -> None:
    config = tiny.llama()
    config.tie_word_embeddings = True
    folder = tiny.write_model(tmp_path / "model", config)
    told = dry(tmp_path, tiny.write_run(tmp_path / "run", folder))

    buffers = told["at_peak"]["weights"] - 4 * model_facts.read(folder).parameters
    assert 0 <= buffers < 4 * config.hidden_size, "The frequencies of positions, and no more."


def plan(run: RunDir, load: Any) -> DryRunPlan:  # noqa: ANN401 -- upstream is untyped
    recipe = load_recipe(run)
    assert isinstance(recipe, SFTRecipe)
    job = TrainingJob.prepare(recipe, run, lambda _phase: None, load)
    size = recipe.optimisation.per_device_train_batch_size
    train, validate = (
        BatchShape(number, part.longest, part.longest_answer, part.packs is not None)
        for number, part in ((size, job.train), (4, job.validation))
    )
    return DryRunPlan(partial(build, recipe, job), job.mode, train, validate)


def test_dry_run_counts_model_larger_than_memory(tmp_path: Path) -> None:
    large = tiny.llama()
    large.update({"hidden_size": 8192, "intermediate_size": 32768, "num_hidden_layers": 8})
    folder = tmp_path / "model"
    large.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    told = dry(tmp_path, tiny.write_run(tmp_path / "run", folder))

    assert sum(told["at_peak"].values()) > 100 * 10**9


def dry(tmp_path: Path, run: RunDir) -> dict[str, Any]:
    folder = TaskDir(tmp_path / "chore")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    return measure(folder, params, lambda _phase, _share: None)


def total(run: RunDir, model: Path, told: dict[str, Any]) -> int:
    recipe, known = load_recipe(run), model_facts.read(model)
    load = memory.batch_shape(recipe, told)
    return memory.from_dry_run(recipe, known, load, told["at_peak"], on_gpu=False).total
