"""What makes a recipe fit, in the order of how little it changes."""

import pytest

from studio.methods import AnyRecipe
from studio.services.estimates import fit_suggestions
from tests.support.factories import make_recipe

FULL = {"kind": "full"}


def batch(recipe: AnyRecipe) -> int:
    return recipe.optimisation.per_device_train_batch_size


def test_a_smaller_batch_learns_the_same() -> None:
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
def test_what_changes_least_comes_first(fits: fit_suggestions.FitsCheck, title: str) -> None:
    way = fit_suggestions.smallest_change(make_recipe(precision="fp32", adapter=FULL), fits)

    assert way is not None
    assert way.title == title


def test_where_one_change_is_not_enough_several_are_made() -> None:
    way = fit_suggestions.smallest_change(
        make_recipe(adapter=FULL),
        lambda one: batch(one) == 1 and one.optimisation.activation_checkpointing,
    )

    assert way is not None
    assert way.title == "Use batch size 1 with 8 accumulation steps, use activation checkpointing"


def test_nothing_is_offered_where_nothing_helps() -> None:
    assert fit_suggestions.smallest_change(make_recipe(), lambda _changed: False) is None


def test_the_largest_batch_is_a_power_of_two_that_fits() -> None:
    way = fit_suggestions.largest_batch(make_recipe(), lambda changed: batch(changed) <= 37, 4000)

    assert way is not None
    assert way.title == "Increase batch size to 32 (the largest that fits)"
    assert way.change == {"optimisation": {"per_device_train_batch_size": 32}}


def test_an_epoch_keeps_enough_updates() -> None:
    way = fit_suggestions.largest_batch(make_recipe(), lambda _changed: True, 1000)

    assert way is not None
    assert way.title == "Increase batch size to 16 (still fits)"


def test_of_few_rows_no_larger_batches_are_made() -> None:
    assert fit_suggestions.largest_batch(make_recipe(), lambda _changed: True, 20) is None


def test_the_largest_batch_is_not_offered_to_those_who_have_it() -> None:
    assert (
        fit_suggestions.largest_batch(make_recipe(), lambda changed: batch(changed) <= 8, 1000)
        is None
    )
