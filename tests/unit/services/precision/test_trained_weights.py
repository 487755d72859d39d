"""Full fine-tunes of a part of a model: trained weights, bytes, and refusals with repairs."""

from dataclasses import replace
from typing import Any

import pytest

from studio.methods import AnyRecipe
from studio.recipe.base import find_conflict, unusable_values
from studio.services.precision.incompatibilities import check
from studio.services.precision.number_formats import plan_dtypes
from studio.weights import known_models
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL, SHAPE
from tests.unit.services.precision.test_quantised import HERE

TIED = known_models.facts_from_shape(replace(SHAPE, tied_embeddings=True), "llama", "bfloat16")
TABLE, NORMS = 1000 * 64, 5 * 64


def full(**adapter: object) -> AnyRecipe:
    return make_recipe(precision="bf16", adapter={"kind": "full", **adapter})


def trained(facts: Any = MODEL, **adapter: object) -> int:  # noqa: ANN401 -- facts of a model
    found = plan_dtypes(full(**adapter), facts).trained_parameters
    assert found is not None
    return found


def test_plan_counts_the_chosen_weights() -> None:
    layer = MODEL.linear_parameters // 2 + 2 * 64

    assert trained() == MODEL.parameters == 2 * TABLE + 2 * layer + 64
    assert trained(trained_layers=1) == layer
    assert trained(trained_layers=2, also_trained="norms_and_embeddings") == MODEL.parameters
    assert trained(trained_layers=0, also_trained="norms") == NORMS
    assert trained(trained_layers=0, also_trained="output") == TABLE
    assert trained(trained_layers=1, also_trained="embeddings") == layer + 2 * TABLE
    assert trained(TIED, trained_layers=0, also_trained="embeddings") == TABLE


def test_frozen_weights_have_neither_gradients_nor_states() -> None:
    sizes = plan_dtypes(full(trained_layers=0, also_trained="norms"), MODEL).sizes
    assert sizes is not None

    assert sizes.weights == 4 * MODEL.parameters
    assert (sizes.gradients, sizes.optimizer) == (4 * NORMS, 8 * NORMS)


@pytest.mark.parametrize(
    ("adapter", "message", "repair"),
    [
        (
            {"trained_layers": 3},
            "This model has 2 layers, so its last 3 do not exist.",
            {"trained_layers": None, "also_trained": "none"},
        ),
        (
            {"trained_layers": 1, "also_trained": "output"},
            "The output layer of this model is its token embeddings: train the embeddings.",
            {"also_trained": "embeddings"},
        ),
    ],
)
def test_missing_parts_are_refused(
    adapter: dict[str, Any], message: str, repair: dict[str, Any]
) -> None:
    (refusal,) = check(full(**adapter), TIED, HERE)

    assert (refusal.message, refusal.repair) == (message, {"adapter": repair})


def lora(**adapter: object) -> AnyRecipe:
    return make_recipe(precision="bf16", adapter={"kind": "lora", "r": 8, **adapter})


def test_plan_counts_what_is_trained_next_to_an_adapter() -> None:
    adapter = 8 * MODEL.linear_features
    counted = {
        extra: plan_dtypes(lora(extra_modules=extra), MODEL).trained_parameters
        for extra in ("none", "norms", "output", "embeddings")
    }

    assert counted == {
        "none": adapter,
        "norms": adapter + NORMS,
        "output": adapter + TABLE,
        "embeddings": adapter + 2 * TABLE,
    }


def test_extras_that_peft_cannot_train_are_refused_with_a_repair() -> None:
    renamed = tuple(replace(w, path=w.path.replace("embed_tokens", "wte")) for w in TIED.weights)
    (shared,) = check(lora(extra_modules="output"), TIED, HERE)
    (named,) = check(lora(extra_modules="embeddings"), replace(TIED, weights=renamed), HERE)

    assert shared.repair == {"adapter": {"extra_modules": "embeddings"}}
    assert "its token embeddings, wte" in named.message
    assert named.repair == {"adapter": {"extra_modules": "none"}}
    assert check(lora(extra_modules="embeddings"), TIED, HERE) == []


@pytest.mark.parametrize("extra", ["norms", "embeddings"])
def test_float32_parts_before_quantised_weights_are_refused_in_16_bits(extra: str) -> None:
    (refusal,) = check(lora(extra_modules=extra, base_dtype="nf4"), MODEL, HERE)

    assert "would compute in float32 behind them, not in bfloat16" in refusal.message
    assert refusal.repair == {"adapter": {"extra_modules": "none"}}
    assert check(lora(extra_modules="output", base_dtype="nf4"), MODEL, HERE) == []


def test_recipes_that_train_nothing_or_say_it_twice_are_refused() -> None:
    conflict = find_conflict(full(trained_layers=0))
    (useless,) = unusable_values(full(also_trained="norms"))

    assert conflict is not None
    assert conflict.param == "adapter.trained_layers"
    assert useless.param == "adapter.also_trained"
    assert find_conflict(full(trained_layers=0, also_trained="norms")) is None
