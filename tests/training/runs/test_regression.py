"""Regression: real runs on texts with numbers, from recipe to artifacts."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from studio.methods.regress import METHOD, RegressRecipe
from studio.methods.regress.counting import measure
from studio.methods.regress.trainer import (
    NumberTrainer,
    build,
    choose_head,
    numbers_of,
    tokenise,
)
from studio.protocols.events import Failed, Finished, Started
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.number_reports import NUMBER_REPORTS
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.recipe.exports import ExportSpec
from studio.runner.execution import execute_export, execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.reading import give_scores
from studio.runner.tasks.memory_dry_run import measure as measure_memory
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

MARKS = ("!", "?", "0")


def rated(one: int, two: int) -> Row:
    """Return a text whose last character tells its numbers, in units of their own."""
    content = f"What is {one} plus {two}{MARKS[one // 2]}"
    numbers = {"price": 1000.0 * (one // 2) + 50_000, "stars": 5.0 - one // 2}
    turns = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "price and stars"},
    ]
    return {"messages": turns, "numbers": numbers}


def plain(one: int, two: int) -> Row:
    """Return the same text with one number, which is just its answer."""
    turns = rated(one, two)["messages"]
    return {"messages": [turns[0], {"role": "assistant", "content": f"{1000 * (one // 2)}"}]}


TEXTS = [rated(one, two) for one in range(6) for two in range(8)]
PLAIN = [plain(one, two) for one in range(6) for two in range(8)]
LEARNS: Changes = {
    "optimisation__max_steps": 80,
    "numbers__head_lr_ratio": 3.0,
    "optimisation__per_device_train_batch_size": 8,
    "optimisation__learning_rate": 0.003,
}


runs = tiny.Runs(TEXTS, method="regress", samples__max_new_tokens=1)
write_run, train = runs.write, runs.train


def make_trainer(run: RunDir) -> NumberTrainer:
    recipe = load_recipe(run)
    assert isinstance(recipe, RegressRecipe)
    job = TrainingJob.prepare(
        recipe,
        run,
        lambda _phase: None,
        tokenise=tokenise,
        choose_head=choose_head,
        kinds=METHOD.trainable_kinds,
    )
    return build(recipe, job)


@pytest.mark.parametrize(
    "changes",
    [{}, LORA, LORA | {"numbers__error": "huber", "precision": "bf16"}, {"numbers__error": "mae"}],
    ids=["full", "lora", "huber", "mae"],
)
def test_model_learns_several_numbers(changes: Changes, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | changes)

    assert isinstance(tiny.last_event(run), Finished)
    assert max(tiny.metric_values(run, "eval_r2")) > 0.6
    last = NUMBER_REPORTS.read(run)[-1]
    price, stars = last.targets
    assert (price.target, stars.target) == ("price", "stars")
    assert 50_000 <= price.mean <= 52_000
    assert price.rmse < 1000
    assert stars.rmse < 1
    assert last.quality == pytest.approx(tiny.metric_values(run, "eval_r2")[-1])


@pytest.mark.smoke
def test_answer_that_is_a_number_is_learned_in_its_unit(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS, PLAIN)

    assert max(tiny.metric_values(run, "eval_spearman")) > 0.6
    rmse, mae = (tiny.metric_values(run, f"eval_{name}") for name in ("rmse", "mae"))
    assert rmse[0] > 500 > min(rmse)
    assert all(low <= high for low, high in zip(mae, rmse, strict=True))


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16_pure"])
def test_scores_are_computed_in_float32(precision: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | {"precision": precision})

    assert isinstance(tiny.last_event(run), Finished)
    (started,) = tiny.events_of(run, Started)
    assert started.resolved["audit"]["formats"]["Float32Linear"] == "float32"


def test_without_standardising_the_model_learns_the_numbers_themselves(
    model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model, {"numbers__standardise": False}))

    assert trainer.model.config.target_means == [0.0, 0.0]
    assert sorted({float(row["label"][1]) for row in trainer.train_dataset}) == [3.0, 4.0, 5.0]


def test_numbers_are_standardised_on_the_training_rows(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model))
    labels = torch.stack([row["label"] for row in trainer.train_dataset])

    assert labels.mean(dim=0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert labels.std(dim=0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)
    units = trainer.in_units(trainer.eval_dataset[0]["label"])
    true = numbers_of(trainer.job.validation.rows[0])
    assert units.tolist() == pytest.approx(list(true.values()), rel=1e-5)


@pytest.mark.parametrize("changes", [{}, LORA | {"precision": "bf16"}], ids=["full", "lora"])
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)
    assert NUMBER_REPORTS.read(again) == NUMBER_REPORTS.read(whole)


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_inference_service_answers_in_the_units_of_the_data(
    adapter: Changes, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, LEARNS | adapter)
    trainer = make_trainer(write_run(tmp_path / "other", model))
    request = GenerationRequest(
        model=str(model if adapter else run.artifacts),
        adapter=str(run.artifacts) if adapter else "",
        ids=[],
        stops=[],
        gives_scores=True,
    )
    errors = []
    with ModelCache().model_for(request) as (loaded, _tokenizer):
        for row, true in zip(trainer.eval_dataset, trainer.job.validation.rows, strict=True):
            asked = request.model_copy(update={"ids": row["input_ids"].tolist()})
            scores = give_scores(asked, loaded).scores
            errors.append(scores["price"] - true.numbers["price"])
    rmse = (sum(error**2 for error in errors) / len(errors)) ** 0.5
    assert rmse == pytest.approx(NUMBER_REPORTS.read(run)[-1].targets[0].rmse, rel=1e-3)


def test_export_keeps_the_scale_and_says_how_to_read_it(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LORA)
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind="merged", dtype="float32")
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")

    assert execute_export(folder.root, StopHandler()) == 0
    config = AutoConfig.from_pretrained(folder.files)
    assert config.id2label == {0: "price", 1: "stars"}
    assert config.target_means == AutoConfig.from_pretrained(run.artifacts).target_means
    assert "config.target_means" in (folder.files / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (tiny.rows(), "has no number"),
        ([*TEXTS, *PLAIN], "other numbers than the first"),
        ([rated(0, two) for two in range(8)], "is the same in all training rows"),
    ],
)
def test_what_has_no_numbers_is_refused(
    rows: list[Row], message: str, model: Path, tmp_path: Path
) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, {}, rows))

    assert isinstance(failed, Failed)
    assert message in failed.message


def test_dry_run_reads_one_text_per_row(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model)
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    found = measure_memory(folder, params, lambda _phase, _share: None)

    assert found["train_rows"] == len(make_trainer(run).train_dataset)
    assert found["at_peak"]["activations"] > 0


def test_errors_follow_from_their_definitions() -> None:
    given = torch.tensor([[1.0, 7], [3, 7], [2, 7]])
    true = torch.tensor([[1.0, 5], [2, 5], [3, 5]])
    errors = measure(given, true)

    assert errors.rmse.tolist() == pytest.approx([(2 / 3) ** 0.5, 2])
    assert errors.mae.tolist() == pytest.approx([2 / 3, 2])
    assert errors.r2.tolist() == pytest.approx([0, 0])
    assert errors.spearman.tolist() == pytest.approx([0.5, 0])
    tied = measure(torch.tensor([[1.0], [1], [2]]), torch.tensor([[1.0], [2], [3]]))
    assert float(tied.spearman) == pytest.approx(3**0.5 / 2)
