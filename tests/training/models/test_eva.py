"""EVA: adapters that start with the directions of their layers' inputs, in every method."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor

from studio.protocols.events import Finished
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.training.models import eva
from studio.training.models.eva import Directions
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.runs import test_preferences, test_ratings, test_reward_models
from tests.training.runs.test_optimisation_options import make_trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EVA: dict[str, Any] = {"adapter__kind": "lora", "adapter__r": 4, "adapter__variant": "eva"}


def captured(vectors: Tensor, directions: Tensor) -> float:
    """Return the share of the vectors' squares that lies in the span of the directions."""
    return float((vectors @ directions.T).square().sum() / vectors.square().sum())


def test_directions_of_one_batch_are_its_singular_vectors() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(200, 32) * torch.linspace(3, 0.1, 32)
    found = Directions(4)
    found.add(vectors)

    exact = torch.linalg.svd(vectors, full_matrices=False)[2][:4]
    torch.testing.assert_close((found.read() @ exact.T).abs(), torch.eye(4), rtol=0, atol=1e-4)


def test_directions_of_many_batches_capture_nearly_what_the_best_could() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(64, 32) * torch.linspace(3, 0.1, 32).roll(i) for i in range(8)]
    found = Directions(4)
    for batch in batches:
        found.add(batch)

    every = torch.cat(batches)
    best = torch.linalg.svd(every, full_matrices=False)[2][:4]
    assert captured(every, found.read()) > 0.97 * captured(every, best)


def test_fewer_vectors_than_ranks_give_as_many_directions() -> None:
    found = Directions(4)
    found.add(torch.eye(3, 32))

    assert found.read().shape == (3, 32)


@pytest.mark.smoke
def test_adapter_starts_with_what_its_inputs_vary_in(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny.write_run(tmp_path / "run", model, **EVA))
    plain = make_trainer(
        tiny.write_run(tmp_path / "plain", model, **EVA | {"adapter__variant": "plain"})
    )
    inputs: dict[str, list[Tensor]] = {}
    layers = {n: m for n, m in trainer.model.named_modules() if isinstance(m, LoraLayer)}
    for name, layer in layers.items():
        kept = inputs.setdefault(name, [])
        layer.register_forward_pre_hook(lambda _m, args, kept=kept: kept.append(args[0]))
    (batch,) = trainer._first_batches(1)
    with torch.no_grad():
        trainer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])

    for name, layer in layers.items():
        first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        random = plain.model.get_submodule(name).lora_A["default"].weight
        vectors = inputs[name][0][batch["labels"] >= 0]
        torch.testing.assert_close(first @ first.T, torch.eye(4), rtol=0, atol=1e-4)
        assert not second.any()
        assert captured(vectors, first) > 1.5 * captured(vectors, torch.linalg.qr(random.T)[0].T)


def test_start_draws_nothing_at_random(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny.write_run(tmp_path / "run", model, **EVA))
    state = torch.random.get_rng_state()
    first = [p.clone() for p in trainer.model.parameters()]
    eva.initialise(trainer.model, trainer._first_batches(eva.BATCHES))

    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(first, trainer.model.parameters(), strict=True))


@pytest.mark.parametrize("changes", [{"data__packing": True}, {"adapter__base_dtype": "nf4"}])
def test_packed_rows_and_quantised_models(
    changes: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model, **EVA, **changes, data__max_length=64)

    assert isinstance(tiny.last_event(run), Finished)


@pytest.mark.parametrize(
    ("method", "write_run"),
    [
        ("dpo", test_preferences.write_run),
        ("kto", test_ratings.write_run),
        ("reward", test_reward_models.write_run),
    ],
)
def test_every_method_can_start_so(
    method: str, write_run: Callable[..., RunDir], model: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / method, model, EVA)

    assert execute_run(run.root, StopHandler()) == 0
    assert isinstance(tiny.last_event(run), Finished)
