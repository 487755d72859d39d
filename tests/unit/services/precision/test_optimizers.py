"""What is said of optimizers before a run starts: their states, and refusals with repairs."""

from dataclasses import replace
from typing import Any

import pytest

from studio.methods import AnyRecipe
from studio.recipe.optimizers import OPTIMIZERS
from studio.services.precision.incompatibilities import check
from studio.services.precision.number_formats import plan_dtypes
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL
from tests.unit.services.precision.test_quantised import HERE

ADAMW = {"optimisation": {"optim": "adamw_torch_fused"}}


def recipe(optim: str, precision: str = "bf16", **adapter: Any) -> AnyRecipe:  # noqa: ANN401 -- settings of an adapter
    return make_recipe(
        precision=precision,
        adapter={"kind": "full", **adapter},
        optimisation={"optim": optim},
    )


def state_bytes(optim: str, **adapter: Any) -> int:  # noqa: ANN401 -- settings of an adapter
    sizes = plan_dtypes(recipe(optim, **adapter), MODEL).sizes
    assert sizes is not None
    return sizes.optimizer


def test_muon_keeps_one_value_for_matrices_and_two_for_the_rest() -> None:
    layers = MODEL.linear_parameters

    assert state_bytes("muon") == state_bytes("adamw_torch") - 4 * layers
    assert state_bytes("muon", trained_layers=1) == (
        state_bytes("adamw_torch", trained_layers=1) - 4 * layers // 2
    )


@pytest.mark.parametrize(
    "asked",
    [
        recipe("muon", kind="lora"),
        recipe("muon", trained_layers=0, also_trained="norms"),
        recipe("muon", precision="bf16_kahan"),
    ],
    ids=["an adapter", "norms alone", "a mode with its own optimizer"],
)
def test_muon_without_its_matrices_is_refused(asked: AnyRecipe) -> None:
    (refusal,) = check(asked, MODEL, HERE)

    assert (refusal.param, refusal.repair) == ("optimisation.optim", ADAMW)


@pytest.mark.parametrize("optim", sorted(OPTIMIZERS))
def test_optimizers_that_are_no_adamw_do_not_replace_that_of_a_precision(optim: str) -> None:
    refusals = check(recipe(optim, precision="bf16_kahan"), MODEL, HERE)

    assert bool(refusals) != OPTIMIZERS[optim].is_adamw  # type: ignore[index] # a name of the table


def test_8bit_states_take_a_quarter_except_for_tables_and_small_weights() -> None:
    """Keys and values have 16 · 64 weights, fewer than bitsandbytes quantises."""
    small = 2 * 2 * 16 * 64
    narrow = MODEL.linear_parameters - small

    assert state_bytes("adamw_8bit") == round(2 * narrow * (1 + 4 / 256)) + 8 * (
        MODEL.parameters - narrow
    )


def test_8bit_states_are_refused_without_their_package() -> None:
    bare = replace(HERE, packages=HERE.packages - {"bitsandbytes"})
    (refusal,) = check(recipe("adamw_8bit"), MODEL, bare)

    assert "needs the package bitsandbytes, which is not installed" in refusal.message
    assert refusal.repair == ADAMW
    assert check(recipe("adamw_8bit"), MODEL, HERE) == []
