"""AdamW for 16-bit weights: what it keeps, what it loses, and what survives saving."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from studio.training.precision.optimizers import (
    Lion,
    MasterAdamW,
    RoundedAdamW,
    round_stochastically,
)

pytestmark = pytest.mark.slow

Make = Callable[..., torch.optim.Optimizer]
MAKERS: dict[str, Make] = {
    "nearest": partial(RoundedAdamW, rounding="nearest"),
    "stochastic": partial(RoundedAdamW, rounding="stochastic", seed=7),
    "kahan": partial(RoundedAdamW, rounding="kahan"),
    "master": MasterAdamW,
}
STATES = {
    "nearest": {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16},
    "stochastic": {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16},
    "kahan": dict.fromkeys(("exp_avg", "exp_avg_sq", "lost"), torch.bfloat16),
    "master": dict.fromkeys(("exp_avg", "exp_avg_sq", "master"), torch.float32),
}
SETTINGS: dict[str, Any] = {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}


def weight(dtype: torch.dtype = torch.bfloat16, size: int = 1000) -> Tensor:
    die = torch.Generator().manual_seed(0)
    return torch.randn(size, generator=die).to(dtype).requires_grad_()


def take(optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> Tensor:
    """Make steps with gradients of their own, and return the weight they lead to."""
    parameter: Tensor = optimizer.param_groups[0]["params"][0]
    for step in range(first, first + steps):
        die = torch.Generator().manual_seed(step)
        parameter.grad = torch.randn(parameter.shape, generator=die).to(parameter.dtype)
        optimizer.step()
    return parameter.detach()


def push(optimizer: torch.optim.Optimizer, steps: int = 200) -> float:
    """Push a weight of one upwards by small steps. Return how far it has come on average."""
    parameter: Tensor = optimizer.param_groups[0]["params"][0]
    for _step in range(steps):
        parameter.grad = torch.full_like(parameter, -1.0)
        optimizer.step()
    return parameter.detach().float().mean().item() - 1


@pytest.mark.parametrize("kind", MAKERS)
def test_float32_steps_match_torch_adamw(kind: str) -> None:
    ours = take(MAKERS[kind]([weight(torch.float32)], lr=0.01, **SETTINGS), 5)
    theirs = take(torch.optim.AdamW([weight(torch.float32)], lr=0.01, **SETTINGS), 5)

    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_master_weights_match_float32_torch_adamw() -> None:
    optimizer = MasterAdamW([weight()], lr=0.01, **SETTINGS)
    narrow = take(optimizer, 5)
    wide = weight().detach().float().requires_grad_()
    theirs = torch.optim.AdamW([wide], lr=0.01, **SETTINGS)
    for step in range(5):
        die = torch.Generator().manual_seed(step)
        wide.grad = torch.randn(wide.shape, generator=die).bfloat16().float()
        theirs.step()

    (state,) = optimizer.state.values()
    assert torch.allclose(state["master"], wide, rtol=1e-5, atol=1e-6)
    assert torch.equal(narrow, state["master"].bfloat16())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("nearest", 0.0), ("stochastic", 0.02), ("kahan", 0.02), ("master", 0.02)],
)
def test_small_steps_accumulate_except_with_nearest_rounding(kind: str, expected: float) -> None:
    optimizer = MAKERS[kind]([torch.ones(2000, dtype=torch.bfloat16, requires_grad=True)], lr=1e-4)

    assert push(optimizer) == pytest.approx(expected, abs=2**-7)


@pytest.mark.parametrize("kind", MAKERS)
def test_optimizer_states_have_expected_formats(kind: str) -> None:
    optimizer = MAKERS[kind]([weight()], lr=0.01)
    take(optimizer, 1)

    (state,) = optimizer.state.values()
    found = {name: value.dtype for name, value in state.items() if name != "step"}
    assert found == STATES[kind]


@pytest.mark.parametrize("kind", MAKERS)
def test_resumed_optimizer_equals_uninterrupted_one(kind: str) -> None:
    whole = take(MAKERS[kind]([weight()], lr=0.01, **SETTINGS), 6)
    begun = MAKERS[kind]([weight()], lr=0.01, **SETTINGS)
    halfway = take(begun, 3).clone().requires_grad_()
    saved = copy.deepcopy(begun.state_dict())

    resumed = MAKERS[kind]([halfway], lr=0.5)
    resumed.load_state_dict(saved)

    assert torch.equal(take(resumed, 3, first=3), whole)


@pytest.mark.parametrize("kind", MAKERS)
def test_resumed_optimizer_keeps_state_formats(kind: str) -> None:
    begun = MAKERS[kind]([weight()], lr=0.01)
    take(begun, 1)

    resumed = MAKERS[kind]([weight()], lr=0.01)
    resumed.load_state_dict(begun.state_dict())

    (state,) = resumed.state.values()
    assert {name: one.dtype for name, one in state.items() if name != "step"} == STATES[kind]


def test_same_seed_gives_same_stochastic_rounding() -> None:
    first, again, other = (
        take(RoundedAdamW([weight()], rounding="stochastic", seed=seed), 3) for seed in (1, 1, 2)
    )

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_stochastic_rounding_does_not_use_global_rng() -> None:
    before = torch.random.get_rng_state()

    take(RoundedAdamW([weight()], rounding="stochastic"), 1)

    assert torch.equal(torch.random.get_rng_state(), before)


def test_stochastic_rounding_is_unbiased() -> None:
    value = torch.full((100_000,), 1 + 2**-10)

    rounded = round_stochastically(value, torch.Generator().manual_seed(0))

    assert sorted(set(rounded.tolist())) == [1.0, 1 + 2**-7]
    assert rounded.mean().item() == pytest.approx(1 + 2**-10, abs=1e-4)


def test_stochastic_rounding_keeps_representable_values() -> None:
    value = torch.tensor([0.0, -0.0, 1.5, -(2.0**-126), 3.3895314e38])

    assert torch.equal(round_stochastically(value, torch.Generator().manual_seed(0)), value)


@pytest.mark.parametrize("bits", [0x7F800000, -0x800000, 0x7FC00000, 0x7FFFFFFF])
def test_stochastic_rounding_keeps_nonfinite_values(bits: int) -> None:
    value = torch.full((1000,), bits, dtype=torch.int32).view(torch.float32)

    rounded = round_stochastically(value, torch.Generator().manual_seed(0))

    assert torch.equal(rounded.view(torch.int32), value.view(torch.int32))


def test_each_group_uses_its_own_weight_decay() -> None:
    kept, decayed = weight(), weight()
    groups = [{"params": [kept], "weight_decay": 0.0}, {"params": [decayed], "weight_decay": 1.0}]
    optimizer = MasterAdamW(groups, lr=0.1)
    kept.grad, decayed.grad = torch.zeros_like(kept), torch.zeros_like(decayed)

    optimizer.step()

    assert torch.equal(kept, weight())
    assert torch.equal(decayed, (weight().float() * 0.9).bfloat16())


def test_lion_follows_its_definition() -> None:
    """Against the update of the paper, written out with scalars."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    optimizer = Lion([weight], lr=0.1, weight_decay=0.5)
    expected, mean = [1.0, -2.0, 0.5], [0.0, 0.0, 0.0]
    for step in range(4):
        gradient = [(-1.0) ** step, 0.25 * step - 0.3, -1.0]
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        for place, slope in enumerate(gradient):
            sign = math.copysign(1, 0.9 * mean[place] + 0.1 * slope)
            expected[place] = expected[place] * (1 - 0.1 * 0.5) - 0.1 * sign
            mean[place] = 0.99 * mean[place] + 0.01 * slope

    assert weight.tolist() == pytest.approx(expected, rel=1e-5)
