"""What is said of LoRA variants before a run starts: sizes, and refusals with repairs."""

from dataclasses import replace

import pytest

from studio.methods import AnyRecipe
from studio.recipe.lora_variants import VariantName
from studio.services.precision.incompatibilities import check
from studio.services.precision.number_formats import plan_dtypes
from studio.weights import known_models
from studio.weights.model_config import UNKNOWN_SHAPE
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_quantised import HERE

SHAPE = replace(
    UNKNOWN_SHAPE,
    layers=2,
    hidden_size=64,
    intermediate=128,
    vocab_size=1000,
    heads=4,
    kv_heads=1,
    head_size=16,
)
MODEL = known_models.facts_from_shape(SHAPE, "llama", "bfloat16")


def with_variant(name: VariantName, **adapter: object) -> AnyRecipe:
    return make_recipe(precision="bf16", adapter={"kind": "lora", "variant": name, **adapter})


@pytest.mark.parametrize(("name", "more"), [("pissa", 0), ("dora", MODEL.linear_rows)])
def test_plan_counts_trained_parameters(name: VariantName, more: int) -> None:
    plain = plan_dtypes(with_variant("plain", r=8), MODEL).trained_parameters

    assert plain == 8 * MODEL.linear_features
    assert plan_dtypes(with_variant(name, r=8), MODEL).trained_parameters == plain + more


@pytest.mark.parametrize("name", ["pissa", "olora"])
def test_rank_above_the_smallest_weight_is_refused(name: VariantName) -> None:
    assert check(with_variant(name, r=16), MODEL, HERE) == []

    (refusal,) = check(with_variant(name, r=17), MODEL, HERE)
    assert "the smallest weight has rank 16" in refusal.message
    assert refusal.repair == {"adapter": {"variant": "plain"}}


def test_any_rank_suits_adapters_that_leave_the_base_alone() -> None:
    assert check(with_variant("dora", r=64), MODEL, HERE) == []


def test_correcting_the_rounding_of_a_model_that_is_not_quantised_is_refused() -> None:
    (refusal,) = check(with_variant("loftq"), MODEL, HERE)

    assert refusal.repair == {"adapter": {"variant": "plain"}}
    assert check(with_variant("loftq", base_dtype="nf4"), MODEL, HERE) == []


@pytest.mark.parametrize("name", ["pissa", "olora"])
def test_quantised_base_is_refused(name: VariantName) -> None:
    (refusal,) = check(with_variant(name, base_dtype="nf4"), MODEL, HERE)

    assert refusal.repair == {"adapter": {"variant": "plain"}}
    assert check(with_variant("dora", base_dtype="nf4"), MODEL, HERE) == []
