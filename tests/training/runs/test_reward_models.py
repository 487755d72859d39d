"""Reward models: real runs on pairs of answers, from recipe to artifacts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from trl import RewardConfig
from trl import RewardTrainer as UpstreamTrainer

from studio.methods.reward import RewardRecipe
from studio.methods.reward.trainer import RewardTrainer, build, choose_head, tokenise
from studio.protocols.events import Failed, Finished, Sampled, Started
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.recipe.exports import ExportKind, ExportSpec
from studio.recipe.precision import DType
from studio.runner.execution import execute_export, execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.reading import give_scores
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training.data.token_preview import tokenise_row
from studio.training.job import TrainingJob
from studio.training.models import heads
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs.test_preferences import PAIRS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


EIGHT: Changes = {"optimisation__max_steps": 8}
"""Float16 skips steps until it has found its loss scale."""


runs = tiny.Runs(PAIRS, method="reward", samples__max_new_tokens=1)
write_run, train = runs.write, runs.train


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter__trained_layers": 1},
        LORA | {"adapter__extra_modules": "norms_and_embeddings"},
        {"optimisation__optim": "muon"},
        {"optimisation__embedding_learning_rate": 1e-4},
    ],
    ids=["last layer", "extra modules", "muon", "embedding rate"],
)
def test_head_is_trained_whatever_else_is(changes: Changes, model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model, changes))
    weights = {id(w) for g in trainer.create_optimizer().param_groups for w in g["params"]}
    trained = {name: w for name, w in trainer.model.named_parameters() if w.requires_grad}

    assert weights == {id(w) for w in trained.values()}
    assert any("score" in name for name in trained)
    run = train(tmp_path / "whole", model, changes)
    assert isinstance(tiny.last_event(run), Finished)


def test_output_for_tokens_is_refused(model: Path, tmp_path: Path) -> None:
    changes: Changes = {"adapter__trained_layers": 1, "adapter__also_trained": "output"}
    failed = tiny.last_event(train(tmp_path / "run", model, changes))

    assert isinstance(failed, Failed)
    assert "no output layer for tokens" in failed.message


def make_trainer(run: RunDir) -> RewardTrainer:
    recipe = load_recipe(run)
    assert isinstance(recipe, RewardRecipe)
    job = TrainingJob.prepare(
        recipe, run, lambda _phase: None, tokenise=tokenise, choose_head=choose_head
    )
    return build(recipe, job)


def scores_of(model: nn.Module, trainer: RewardTrainer) -> torch.Tensor:
    """Return the scores of the validation pairs by upstream's plain forward pass."""
    batch = trainer.data_collator(trainer.eval_dataset)
    with torch.no_grad():
        scores: torch.Tensor = model.eval()(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits
    return scores.squeeze(-1)


@pytest.mark.parametrize(
    "adapter",
    [{}, LORA, {"adapter__trained_layers": 1}, LORA | {"adapter__extra_modules": "norms"}],
    ids=["full", "lora", "last layer", "norms"],
)
def test_model_learns_to_score_the_better_answer_higher(
    adapter: Changes, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, adapter | {"optimisation__max_steps": 16})

    shares = tiny.metric_values(run, "eval_preferred_share")
    margins = tiny.metric_values(run, "eval_reward_margin")
    assert isinstance(tiny.last_event(run), Finished)
    assert abs(margins[0]) < 0.2
    assert (shares[-1], margins[-1] > 0.5) == (1.0, True)
    assert tiny.events_of(run, Sampled) == []


@pytest.mark.parametrize("centring", [0.0, 0.1])
def test_loss_equals_upstreams(centring: float, model: Path, tmp_path: Path) -> None:
    """On the same weights and batch, the loss is that of TRL's reward trainer."""
    run = write_run(tmp_path / "run", model, {"scoring__centring": centring})
    trainer = make_trainer(run)
    batch = trainer.data_collator(trainer.train_dataset[:8])
    theirs = UpstreamTrainer.__new__(UpstreamTrainer)
    theirs.model = trainer.model
    theirs.args = RewardConfig(
        center_rewards_coefficient=centring or None, output_dir="", bf16=False, use_cpu=True
    )
    theirs.accelerator, theirs._tp_size = trainer.accelerator, 1
    theirs._total_train_tokens, theirs._metrics = 0, {"train": _Lists(), "eval": _Lists()}

    ours = trainer.compute_loss(trainer.model, dict(batch))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = theirs.compute_loss(trainer.model, inputs)

    assert float(ours.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    sums, mode = trainer._losses.read(), "train" if trainer.model.training else "eval"
    assert sums["reward_margin"] == pytest.approx(theirs._metrics[mode]["margin"][0], abs=1e-5)
    assert sums["preferred_share"] == pytest.approx(theirs._metrics[mode]["accuracy"][0])


class _Lists(dict[str, list[Any]]):
    """Lists that exist once they are asked for, as upstream keeps its metrics."""

    def __missing__(self, key: str) -> list[Any]:
        return self.setdefault(key, [])


def test_centring_pulls_the_scores_towards_zero(model: Path, tmp_path: Path) -> None:
    sums = []
    for centring in (0.0, 1.0):
        changes = {"scoring__centring": centring, "optimisation__max_steps": 16}
        run = train(tmp_path / f"{centring}", model, changes)
        chosen = tiny.metric_values(run, "eval_chosen_score")[-1]
        sums.append(abs(chosen + tiny.metric_values(run, "eval_rejected_score")[-1]))

    assert sums[1] < 0.1 * sums[0]


def test_batch_size_and_accumulation_do_not_change_the_loss(model: Path, tmp_path: Path) -> None:
    curves = [
        tiny.metric_values(
            train(
                tmp_path / f"{size}",
                model,
                {
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                },
            ),
            "loss",
        )
        for size, times in ((4, 1), (2, 2), (1, 4))
    ]

    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[2] == pytest.approx(curves[0], rel=1e-4)


def test_seed_alone_decides_the_new_head(model: Path, tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(3)
        trainer = make_trainer(write_run(tmp_path / name, model, {"optimisation__seed": seed}))
        weights.append(trainer.model.score.weight.detach().clone())

    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_head_has_its_own_learning_rate(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model, LORA))
    optimizer = trainer.create_optimizer()

    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    head = [p for part in heads.output_modules(trainer.model) for p in part.parameters()]
    trained = [id(p) for p in head if p.requires_grad]
    rest = rates.keys() - set(trained)
    assert {round(rates[one], 6) for one in trained} == {0.1}
    assert {round(rates[one], 6) for one in rest} == {0.01}


@pytest.mark.parametrize(
    "precision", ["bf16", "fp16", "bf16_dual", "bf16_kahan", "bf16_pure", "fp32_bf16_matmul"]
)
@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_scores_are_computed_in_float32(
    precision: str, adapter: Changes, model: Path, tmp_path: Path
) -> None:
    if adapter and precision in ("bf16_dual", "bf16_kahan", "bf16_pure"):
        pytest.skip("for full fine-tunes only")
    run = train(tmp_path / "run", model, adapter | {"precision": precision} | EIGHT)

    assert isinstance(tiny.last_event(run), Finished)
    (started,) = tiny.events_of(run, Started)
    assert "score" in started.resolved["audit"]["kept_in_float32"]
    assert started.resolved["audit"]["formats"]["Float32Linear"] == "float32"


@pytest.mark.parametrize(
    ("rows", "changes", "code", "message"),
    [
        (tiny.rows(), {}, "bad_row", "Row 1 of the training data has no pair of answers"),
        (PAIRS, {"data__max_length": 16}, "sequence_too_long", "before their answers differ"),
        (PAIRS, {"data__packing": True}, "conflict", "cannot be packed"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    rows: list[Row], changes: Changes, code: str, message: str, model: Path, tmp_path: Path
) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, changes, rows))

    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == (code, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16_dual"},
        LORA | {"precision": "bf16"},
        LORA | {"adapter__variant": "pissa"},
    ],
    ids=["full", "lora", "pissa"],
)
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_full_model_loads_without_the_studio(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model)
    trainer = make_trainer(write_run(tmp_path / "other", model))

    loaded = AutoModelForSequenceClassification.from_pretrained(run.artifacts)
    assert (loaded.config.num_labels, loaded.config.pad_token_id) == (1, 0)
    chosen, rejected = scores_of(loaded, trainer).chunk(2)
    margin = float((chosen - rejected).mean())
    assert margin == pytest.approx(tiny.metric_values(run, "eval_reward_margin")[-1], abs=1e-5)


@pytest.mark.parametrize("variant", ["plain", "pissa"])
def test_adapter_loads_without_the_studio(variant: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LORA | {"adapter__variant": variant})
    trainer = make_trainer(write_run(tmp_path / "other", model))

    config = AutoConfig.from_pretrained(run.artifacts)
    base = AutoModelForSequenceClassification.from_pretrained(model, config=config)
    loaded = PeftModel.from_pretrained(base, run.artifacts)
    chosen, rejected = scores_of(loaded, trainer).chunk(2)
    margin = float((chosen - rejected).mean())
    assert margin == pytest.approx(tiny.metric_values(run, "eval_reward_margin")[-1], abs=1e-4)


def test_dry_run_reads_both_answers(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model)
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    found = measure(folder, params, lambda _phase, _share: None)

    assert found["train_rows"] == len(make_trainer(run).train_dataset)
    assert found["at_peak"]["activations"] > 0


@pytest.mark.parametrize(
    ("adapter", "kind", "dtype"),
    [
        ({}, "full", "bfloat16"),
        (LORA, "merged", "float32"),
        (LORA, "merged", "float16"),
        (LORA, "adapter", "float32"),
        (LORA | {"adapter__base_dtype": "bfloat16", "precision": "bf16"}, "merged", "float32"),
    ],
)
def test_export_gives_the_scores_of_the_run(
    adapter: Changes, kind: ExportKind, dtype: DType, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, adapter)
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind=kind, dtype=dtype)
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    assert execute_export(folder.root, StopHandler()) == 0

    config = AutoConfig.from_pretrained(folder.files)
    place = model if kind == "adapter" else folder.files
    loaded = AutoModelForSequenceClassification.from_pretrained(place, config=config)
    if kind == "adapter":
        loaded = PeftModel.from_pretrained(loaded, folder.files)
    trainer = make_trainer(write_run(tmp_path / "other", model))
    chosen, rejected = scores_of(loaded, trainer).float().chunk(2)
    margin = float((chosen - rejected).mean())
    near = 1e-5 if dtype == "float32" and "precision" not in adapter else 0.05
    assert margin == pytest.approx(tiny.metric_values(run, "eval_reward_margin")[-1], abs=near)
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text-classification" in card
    assert "AutoModelForSequenceClassification" in card


@pytest.mark.parametrize(
    "adapter",
    [{}, LORA, LORA | {"adapter__base_dtype": "bfloat16", "precision": "bf16"}],
    ids=["full", "lora", "rounded base"],
)
def test_inference_service_gives_the_scores_of_the_validation(
    adapter: Changes, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, adapter)
    is_full = adapter == {}
    recipe, rows = load_recipe(run), make_trainer(write_run(tmp_path / "other", model)).eval_dataset
    served = GenerationRequest(
        model=str(run.artifacts if is_full else model),
        adapter="" if is_full else str(run.artifacts),
        precision=recipe.precision,
        base_dtype=adapter.get("adapter__base_dtype", ""),
        gives_scores=True,
        ids=[],
        stops=[],
    )
    cache = ModelCache()

    def score(ids: list[int]) -> float:
        request = served.model_copy(update={"ids": ids})
        with cache.model_for(request) as (loaded, _tokenizer):
            return give_scores(request, loaded).scores["score"]

    for name, key in (("input_ids", "chosen"), ("rejected_ids", "rejected")):
        scores = [score(row[name].tolist()) for row in rows]
        expected = tiny.metric_values(run, f"eval_{key}_score")[-1]
        near = 0.05 if recipe.precision == "bf16" else 1e-4
        assert sum(scores) / len(scores) == pytest.approx(expected, abs=near)


def test_a_conversation_is_read_as_in_training(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model))
    read = [
        tokenise_row(
            TokenizerRequest(
                kind="reading",
                model=str(model),
                row={"messages": [*row["messages"], *row["chosen"]]},
                max_length=1024,
            ),
            tiny.tokenizer(),
        ).ids
        for row in PAIRS
    ]

    assert {tuple(row["input_ids"].tolist()) for row in trainer.train_dataset} <= set(
        map(tuple, read)
    )
