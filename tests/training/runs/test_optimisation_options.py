"""Options of how a run learns: LoRA+, NEFTune and dynamic fine-tuning, in real runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from studio.methods.sft import METHOD
from studio.protocols.events import Finished
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.data.tokenisation import Collator
from studio.training.job import TrainingJob
from studio.training.next_token import NextTokenTrainer
from studio.training.run_trainer import build_arguments
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LORA: dict[str, Any] = {"adapter__kind": "lora", "adapter__r": 4}
PLUS = LORA | {"adapter__lr_ratio": 16.0, "optimisation__learning_rate": 1e-3}
OPTIONS: dict[str, dict[str, Any]] = {
    "lora+": PLUS,
    "neftune": {"optimisation__neftune_noise_alpha": 5.0},
    "lion": {"optimisation__optim": "lion_32bit", "optimisation__learning_rate": 3e-3},
    "muon": {"optimisation__optim": "muon", "optimisation__weight_decay": 0.01},
    "dft": {"optimisation__loss_type": "dft"},
}


def make_trainer(run: RunDir) -> NextTokenTrainer:
    recipe = load_recipe(run)
    job = TrainingJob.prepare(recipe, run, lambda _phase: None)
    return NextTokenTrainer(job, build_arguments(recipe, job, METHOD.objective), [])


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("option", OPTIONS)
def test_run_learns(option: str, precision: str, model: Path, tmp_path: Path) -> None:
    changes = OPTIONS[option] | {"precision": precision, "optimisation__max_steps": 12}
    run = tiny.train(tmp_path / "run", model, **changes)

    losses = tiny.metric_values(run, "eval_loss")
    assert isinstance(tiny.last_event(run), Finished)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("option", OPTIONS)
def test_option_changes_training_but_not_its_start(
    option: str, model: Path, tmp_path: Path
) -> None:
    """Validation knows neither noise nor weights of tokens."""
    settings = OPTIONS[option]
    plain = settings | {"adapter__lr_ratio": 1.0} if option == "lora+" else {}
    runs = [
        tiny.train(tmp_path / name, model, **changes)
        for name, changes in (("with", settings), ("without", plain))
    ]

    first, second = (tiny.metric_values(run, "eval_loss") for run in runs)
    assert first[0] == second[0]
    assert first[-1] != second[-1]


@pytest.mark.parametrize("option", OPTIONS)
def test_resumed_run_equals_uninterrupted_run(option: str, model: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", model, **STEPS, **SAVED, **OPTIONS[option])
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_lora_plus_multiplies_the_rate_of_second_matrices_only(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny.write_run(tmp_path / "run", model, **PLUS))
    optimizer = trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}

    trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert rates.keys() == {id(p) for p in trained.values()}
    assert all(
        rates[id(p)] == pytest.approx(16e-3 if ".lora_B." in name else 1e-3)
        for name, p in trained.items()
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_embeddings_use_their_own_rate_next_to_an_adapter_too(
    kind: str, tmp_path: Path, *, tied: bool
) -> None:
    config = tiny.llama()
    config.tie_word_embeddings = tied
    base = tiny.write_model(tmp_path / "base", config)
    extra = {"adapter__extra_modules": "embeddings"} if kind == "lora" else {}
    changes = {"adapter__kind": kind, "optimisation__embedding_learning_rate": 1e-3}
    trainer = make_trainer(tiny.write_run(tmp_path / "run", base, **changes, **extra))
    optimizer = trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}

    trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    found = {name: rates[id(p)] for name, p in trained.items()}
    slow = {name for name, rate in found.items() if rate == 1e-3}
    assert len(slow) == (1 if tied else 2)
    assert all("embed_tokens" in name or "lm_head" in name for name in slow)
    assert {rate for name, rate in found.items() if name not in slow} == {0.01}


def test_dft_gradient_is_that_of_its_definition(model: Path, tmp_path: Path) -> None:
    """Each token's cross-entropy is weighted by its probability, which has no gradient."""
    run = tiny.write_run(tmp_path / "run", model, optimisation__loss_type="dft")
    trainer = make_trainer(run)
    batch = Collator(trainer.processing_class.pad_token_id)(trainer.train_dataset[0:4])
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    logits = trainer.model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    mask = targets >= 0
    scores = torch.log_softmax(logits, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    expected = -(scores * scores.detach().exp())[mask].mean()

    weight = trainer.model.get_input_embeddings().weight
    gradients = [torch.autograd.grad(value, weight)[0] for value in (loss, expected)]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)
