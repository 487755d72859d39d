"""Updates that rounding undoes: a warning with the share of weights, or a refusal."""

import pytest

from studio.methods import AnyRecipe
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import check_precision
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_recommendation import FULL, H100, model

STARTER = {-3: 0.2, -5: 0.5, -7: 0.25, -9: 0.045, -30: 0.005}
"""The shares of weights by their power of two, roughly as in the starter model."""


def recipe(rate: float, precision: str = "bf16_pure", method: str = "sft") -> AnyRecipe:
    return make_recipe(
        method=method, precision=precision, optimisation={"learning_rate": rate}, **FULL
    )


@pytest.mark.parametrize("method", ["dpo", "kto", "sft"])
def test_run_whose_updates_are_all_rounded_away_is_refused(method: str) -> None:
    (refusal,) = check_precision(recipe(1e-6, method=method), model(powers=STARTER), H100)

    assert refusal.message == (
        "At a learning rate of 1e-06, 99.5 % of the weights would never change: bfloat16 "
        "throughout rounds their updates away."
    )
    assert refusal.repair == {"precision": "bf16"}


@pytest.mark.parametrize(
    "moving",
    [
        *(recipe(1e-6, mode) for mode in ("bf16", "bf16_dual", "bf16_stochastic", "bf16_kahan")),
        recipe(1e-4),
    ],
    ids=["bf16", "bf16_dual", "bf16_stochastic", "bf16_kahan", "larger rate"],
)
def test_run_that_keeps_its_updates_is_not_refused(moving: AnyRecipe) -> None:
    assert check_precision(moving, model(powers=STARTER), H100) == []


def test_refused_updates_are_not_warned_of_as_well() -> None:
    facts = model(powers=STARTER)

    assert not list(recommendation.list_warnings(recipe(1e-6), facts))
    assert list(recommendation.list_warnings(recipe(1e-5), facts))
