"""Continued pre-training: real runs on texts, from recipe to artifacts."""

import math
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from studio.methods.cpt import CPTRecipe
from studio.methods.cpt.trainer import build
from studio.protocols.events import Failed, Finished, Sampled, Started
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.recipe.exports import ExportSpec
from studio.recipe.precision import PrecisionName
from studio.runner.execution import execute_export, execute_run
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

TEXTS = [
    {"text": f"{one} and {two} are numbers. Their sum is {one + two}."}
    for one in range(8)
    for two in range(6)
]


def write_run(root: Path, model: Path, **changes: object) -> RunDir:
    """Lay out a run on texts; `changes` are settings, `__` for the dot."""
    return tiny.write_run(root, model, TEXTS, method="cpt", **changes)


def train(root: Path, model: Path, **changes: object) -> RunDir:
    return tiny.train(root, model, TEXTS, method="cpt", **changes)


def test_perplexity_is_reported_and_decreases(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, optimisation__max_steps=12, data__max_length=64)

    losses, found = (tiny.metric_values(run, key) for key in ("eval_loss", "eval_perplexity"))
    assert found == pytest.approx([math.exp(loss) for loss in losses])
    assert found[-1] < 0.8 * found[0]
    assert isinstance(tiny.last_event(run), Finished)


def test_texts_are_packed_by_default(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model, data__max_length=128)
    job = TrainingJob.prepare(load_recipe(run), run, lambda _phase: None)

    assert job.train.packs is not None
    assert job.train.count < len(job.train.rows)


def test_embeddings_use_their_own_learning_rate(model: Path, tmp_path: Path) -> None:
    """A rate near zero leaves the embeddings where they were; the other weights move."""
    run = train(
        tmp_path / "run",
        model,
        data__max_length=64,
        optimisation__embedding_learning_rate=1e-12,
    )
    before = load_file(model / "model.safetensors")
    after = load_file(run.artifacts / "model.safetensors")

    moved = {name for name, weight in before.items() if not weight.allclose(after[name], atol=1e-7)}
    assert {"model.embed_tokens.weight", "lm_head.weight"} & moved == set()
    assert "model.layers.0.mlp.up_proj.weight" in moved


@pytest.mark.parametrize("precision", ["fp32", "bf16_kahan", "bf16_dual"])
def test_parameter_groups_cover_all_weights_with_two_rates(
    precision: PrecisionName, model: Path, tmp_path: Path
) -> None:
    run = write_run(
        tmp_path / "run",
        model,
        precision=precision,
        data__max_length=64,
        optimisation__embedding_learning_rate=0.002,
        optimisation__weight_decay=0.1,
    )
    recipe = load_recipe(run)
    assert isinstance(recipe, CPTRecipe)
    trainer = build(recipe, TrainingJob.prepare(recipe, run, lambda _phase: None))
    optimizer = trainer.create_optimizer()

    rates = {group["lr"] for group in optimizer.param_groups if group["params"]}
    weights = [id(weight) for group in optimizer.param_groups for weight in group["params"]]
    assert rates == {0.01, 0.002}
    assert sorted(weights) == sorted({id(weight) for weight in trainer.model.parameters()})


def test_conversations_are_rejected_with_hint_for_other_method(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, method="cpt")

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert failed.message == "Row 1 of the training data is not a text."
    assert failed.hint == "Choose a dataset of plain text, or learn from answers."


def test_run_records_steps_and_method(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, data__max_length=64, samples__prompts=2)

    card = (run.artifacts / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---")[1])
    assert tiny.events_of(run, Started)[0].total_steps == 3
    assert front["tags"][1:3] == ["cpt", "continued-pretraining"]
    assert "`tiny` pre-trained further with Mantissa Studio" in card
    assert "| eval loss |" in card
    after = [sample for sample in tiny.events_of(run, Sampled) if sample.stage == "after"]
    assert {f"{sample.prompt} {sample.reference}" for sample in after} <= {
        row["text"] for row in TEXTS
    }
    assert len(after) == 2


def test_a_resumed_run_equals_an_undisturbed_one(model: Path, tmp_path: Path) -> None:
    settings = STEPS | SAVED | {"optimisation__embedding_learning_rate": 0.001}
    settings |= {"precision": "bf16_dual"}
    whole = train(tmp_path / "whole", model, **settings, data__max_length=128)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_a_dry_run_measures_packed_texts(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model, data__max_length=128)
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    found = measure(folder, params, lambda _phase, _share: None)

    assert found["train_examples"] < found["train_rows"]
    assert found["at_peak"]["weights"] > 0


def test_an_exported_model_has_its_perplexity_measured(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, data__max_length=128)
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind="full", dtype="float32")
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")

    assert execute_export(folder.root, StopHandler()) == 0
    finished = folder.events.read()[0][-1]
    assert isinstance(finished, Finished)
    perplexity = tiny.metric_values(run, "eval_perplexity")[-1]
    assert finished.metrics["perplexity_before"] == pytest.approx(perplexity, rel=1e-5)
    assert "pre-trained further" in (folder.files / "README.md").read_text(encoding="utf-8")
