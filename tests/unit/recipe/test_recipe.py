"""Recipes: what is accepted, what is refused, and how they travel."""

from typing import Any

import pytest
from pydantic import ValidationError

from studio.errors import InvalidError
from studio.methods import METHODS, RECIPE_ADAPTER
from studio.recipe import yaml
from studio.recipe.dotted_keys import flatten, merge, nest

LEAST: dict[str, Any] = {"base_model": "starter", "dataset": "starter"}


def test_omitted_fields_take_defaults() -> None:
    recipe = RECIPE_ADAPTER.validate_python(LEAST)

    assert (recipe.precision, recipe.adapter.kind, recipe.optimisation.seed) == ("auto", "lora", 42)


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        (
            {"optimisation": {"learning_rate": -1.0}},
            ("optimisation", "learning_rate"),
            "Input should be greater than 0",
        ),
        (
            {"optimisation": {"learning_rate": "1e-4"}},
            ("optimisation", "learning_rate"),
            "Input should be a valid number",
        ),
        (
            {"optimisation": {"max_steps": True}},
            ("optimisation", "max_steps"),
            "Input should be a valid integer",
        ),
        (
            {"optimisation": {"lerning_rate": 1e-4}},
            ("optimisation", "lerning_rate"),
            "Extra inputs are not permitted",
        ),
        ({"trust_remote_code": True}, ("trust_remote_code",), "Extra inputs are not permitted"),
        (
            {"optimisation": {"learning_rate": float("nan")}},
            ("optimisation", "learning_rate"),
            "Input should be a finite number",
        ),
        (
            {"adapter": {"kind": "lora", "r": 10**9}},
            ("adapter", "lora", "r"),
            "Input should be less than or equal to 1024",
        ),
        (
            {"adapter": {"kind": "lora", "target_modules": "(a+)+$"}},
            ("adapter", "lora", "target_modules"),
            "Input should be 'all-linear', 'attention' or 'mlp'",
        ),
        (
            {"adapter": {"kind": "lora", "module_names": "(a+)+$"}},
            ("adapter", "lora", "module_names"),
            r"String should match pattern '^\s*\w+\s*(,\s*\w+\s*)*$'",
        ),
    ],
)
def test_invalid_values_are_rejected_by_field(
    changes: dict[str, Any], place: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        RECIPE_ADAPTER.validate_python(LEAST | changes)

    found = [(error["loc"], error["msg"]) for error in refused.value.errors()]
    assert found == [(("sft", *place), message)]


def test_lenient_validation_parses_numbers_from_text() -> None:
    values = LEAST | {"optimisation": {"learning_rate": "1e-4"}}

    recipe = RECIPE_ADAPTER.validate_python(values, strict=False)
    assert recipe.optimisation.learning_rate == 1e-4


@pytest.mark.parametrize("preset", METHODS["sft"].presets, ids=lambda preset: preset.name)
def test_every_preset_is_valid_recipe(preset: Any) -> None:  # noqa: ANN401 -- a Preset
    assert RECIPE_ADAPTER.validate_python(dict(preset.values)).method == "sft"


def test_yaml_includes_help_and_round_trips() -> None:
    recipe = RECIPE_ADAPTER.validate_python(LEAST)
    text = yaml.dump(recipe)

    assert (
        "  # Size of the adapter. A higher rank learns more and uses more memory.\n  r: 16\n"
        in text
    )
    assert RECIPE_ADAPTER.validate_python(yaml.load(text)) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\nb: 3", "Invalid YAML at line 2, column 2."),
        ("- a\n- b", "A recipe must consist of `name: value` lines."),
    ],
)
def test_invalid_yaml_error_gives_position(text: str, message: str) -> None:
    with pytest.raises(InvalidError) as refused:
        yaml.load(text)

    assert refused.value.message == message


def test_dotted_names_nest_and_flatten() -> None:
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}

    assert nest(flatten(nested).items()) == nested


def test_name_cannot_be_both_value_and_group() -> None:
    with pytest.raises(InvalidError) as refused:
        nest([("a", 1), ("a.b", 2)])

    assert refused.value.message == "a is both a value and a group of fields. Use one."


def test_merge_keeps_unnamed_fields() -> None:
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}) == {"a": {"b": 1, "c": 3}}


def test_other_adapter_kind_replaces_whole_group() -> None:
    lora = {"adapter": {"kind": "lora", "r": 8}}

    assert merge(lora, {"adapter": {"kind": "full"}}) == {"adapter": {"kind": "full"}}
