"""Activations offloaded to the host: wired in every trainer, and refused without a GPU."""

from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from trl.models import activation_offloading

from studio import hardware
from studio.methods import METHODS
from studio.protocols.events import Failed
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from tests.training import tiny
from tests.training.runs import test_classification

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OFFLOADED: dict[str, Any] = {"optimisation__activation_offloading": True}


@pytest.mark.smoke
@pytest.mark.skipif(hardware.detect().device != "cpu", reason="this machine has a GPU")
@pytest.mark.parametrize("train", [tiny.train, test_classification.train])
def test_run_without_a_gpu_is_refused(train: Any, model: Path, tmp_path: Path) -> None:  # noqa: ANN401 -- two signatures
    failed = tiny.last_event(
        tiny.train(tmp_path / "run", model, **OFFLOADED)
        if train is tiny.train
        else train(tmp_path / "run", model, OFFLOADED)
    )

    assert isinstance(failed, Failed)
    assert failed.code == "conflict"
    assert "Activation offloading cannot be used here: it needs an NVIDIA GPU" in failed.message
    assert failed.hint == "Turn off activation offloading."


class Recorded(saved_tensors_hooks):
    """In place of upstream's context, which only a GPU can build: counts what a step saves."""

    def __init__(self, **_options: object) -> None:
        super().__init__(self.pack, lambda tensor: tensor)
        self.stored: set[int] = set()
        self.saved = 0

    def pack(self, tensor: Tensor) -> Tensor:
        self.saved += 1
        return tensor

    def update_model_params(self, model: nn.Module) -> None:
        self.stored = {weight.untyped_storage().data_ptr() for weight in model.parameters()}


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("method", ["sft", "classify"])
def test_trainer_offloads_what_a_step_saves(
    kind: str, method: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are recognised by where they are when training begins."""
    monkeypatch.setattr(activation_offloading, "OffloadActivations", Recorded)
    writer: Any = {"sft": tiny.write_run, "classify": test_classification.write_run}[method]
    changes = {"adapter__kind": kind}
    run = (
        writer(tmp_path / "run", model, **changes)
        if method == "sft"
        else writer(tmp_path / "run", model, changes)
    )
    recipe: Any = load_recipe(run)
    trainers: Any = import_module(f"studio.methods.{method}.trainer")
    job = TrainingJob.prepare(
        recipe,
        run,
        lambda _phase: None,
        tokenise=trainers.tokenise,
        kinds=METHODS[method].trainable_kinds,
        choose_head=getattr(trainers, "choose_head", None),
    )
    assert isinstance(trainers.build(recipe, job).offloading, nullcontext)
    optimisation = job.optimisation.model_copy(update={"activation_offloading": True})
    trainer = trainers.build(recipe, replace(job, optimisation=optimisation))
    offloading = trainer.offloading

    assert offloading.stored == {w.untyped_storage().data_ptr() for w in trainer.model.parameters()}
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    batch = next(iter(trainer.get_train_dataloader()))
    count = torch.ones((), dtype=torch.long)
    assert offloading.saved == 0
    trainer.training_step(trainer.model, batch, count)
    assert offloading.saved > 0
