"""A base model whose files are broken: found before training, and never blamed on it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from studio.protocols.events import Failed, Finished, Sampled
from studio.weights.safetensors_headers import WEIGHTS_FILE
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

UP = "model.layers.0.mlp.up_proj.weight"
LORA: dict[str, Any] = {"adapter__kind": "lora", "precision": "bf16"}
FULL: dict[str, Any] = {}


def changed(folder: Path, **tensors: torch.Tensor) -> Path:
    """Save the tiny model with some tensors in place of its own; None takes one away."""
    tiny.write_model(folder, tiny.llama())
    weights = load_file(folder / WEIGHTS_FILE) | tensors
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    return folder


def with_broken(folder: Path, value: float) -> Path:
    tiny.write_model(folder, tiny.llama())
    weight = load_file(folder / WEIGHTS_FILE)[UP]
    weight[3, 5] = weight[4, 6] = value
    return changed(folder, **{UP: weight})


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize(
    "knobs", [LORA, FULL, LORA | {"adapter__base_dtype": "nf4"}], ids=["lora", "full", "nf4"]
)
def test_nonfinite_weights_are_named_before_training(
    tmp_path: Path, value: float, knobs: dict[str, Any]
) -> None:
    folder = with_broken(tmp_path / "model", value)
    run = tiny.train(tmp_path / "run", folder, samples__prompts=1, **knobs)

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.message) == (
        "corrupt_weights",
        f"2 weights of the base model are NaN or infinite, in {UP}. Nothing was trained.",
    )
    assert tiny.events_of(run, Sampled) == []


def test_broken_unused_tensor_is_ignored(tmp_path: Path) -> None:
    folder = changed(tmp_path / "model", **{"unused.weight": torch.full((4, 4), math.nan)})

    assert isinstance(tiny.last_event(tiny.train(tmp_path / "run", folder)), Finished)


def test_missing_weight_fails_run_with_its_name(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.llama())
    weights = load_file(folder / WEIGHTS_FILE)
    del weights[UP]
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    failed = tiny.last_event(tiny.train(tmp_path / "run", folder))

    assert isinstance(failed, Failed)
    assert (failed.code, failed.message) == (
        "corrupt_weights",
        f"The base model's files lack 1 of its weights, first {UP}.",
    )
