"""What makes a recipe fit, in the order of how little it changes."""

import pytest

from studio.methods import AnyRecipe
from studio.services.estimates import fit_suggestions
from tests.support.factories import make_recipe

FULL = {"kind": "full"}


def batch(recipe: AnyRecipe) -> int:
    return recipe.optimisation.per_device_train_batch_size


def test_smaller_batch_is_compensated_by_gradient_accumulation() -> None:
    way = fit_suggestions.smallest_change(make_recipe(), lambda changed: batch(changed) <= 3)

    assert way is not None
    assert way.title == "Use batch size 2 with 4 accumulation steps"
    assert way.change == {
        "optimisation": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    }


@pytest.mark.parametrize(
    ("fits", "title"),
    [
        (lambda one: one.optimisation.activation_checkpointing, "Use activation checkpointing"),
        (lambda one: one.adapter.kind == "lora", "Train a LoRA adapter"),
        (lambda one: one.data.max_length <= 300, "Set max sequence length to 256 tokens"),
        (lambda one: one.precision == "bf16_pure", "Use bfloat16 throughout"),
    ],
)
def test_smallest_sufficient_change_is_suggested_first(
    fits: fit_suggestions.FitsCheck, title: str
) -> None:
    way = fit_suggestions.smallest_change(make_recipe(precision="fp32", adapter=FULL), fits)

    assert way is not None
    assert way.title == title


def test_several_changes_are_combined_when_needed() -> None:
    way = fit_suggestions.smallest_change(
        make_recipe(adapter=FULL),
        lambda one: batch(one) == 1 and one.optimisation.activation_checkpointing,
    )

    assert way is not None
    assert way.title == "Use batch size 1 with 8 accumulation steps, use activation checkpointing"


def test_nothing_is_suggested_when_no_change_fits() -> None:
    assert fit_suggestions.smallest_change(make_recipe(), lambda _changed: False) is None


def test_largest_batch_is_power_of_two_that_fits() -> None:
    way = fit_suggestions.largest_batch(make_recipe(), lambda changed: batch(changed) <= 37, 4000)

    assert way is not None
    assert way.title == "Increase batch size to 32 (the largest that fits)"
    assert way.change == {"optimisation": {"per_device_train_batch_size": 32}}


def test_largest_batch_keeps_enough_updates_per_epoch() -> None:
    way = fit_suggestions.largest_batch(make_recipe(), lambda _changed: True, 1000)

    assert way is not None
    assert way.title == "Increase batch size to 16 (still fits)"


def test_larger_batch_is_not_suggested_for_few_rows() -> None:
    assert fit_suggestions.largest_batch(make_recipe(), lambda _changed: True, 20) is None


def test_largest_batch_is_not_suggested_when_already_used() -> None:
    assert (
        fit_suggestions.largest_batch(make_recipe(), lambda changed: batch(changed) <= 8, 1000)
        is None
    )
