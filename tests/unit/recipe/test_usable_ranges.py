"""Numbers that no run can use are refused at submission, and only there."""

from typing import Any

import pytest

from studio.methods import METHODS, RECIPE_ADAPTER
from studio.recipe.base import unusable_values
from studio.recipe.fields import Section, field_spec, section_types

LEAST: dict[str, Any] = {"base_model": "starter", "dataset": "starter"}


def float_knobs(section: type[Section], prefix: str = "") -> dict[str, Any]:
    """Return each knob that holds a float, by its dotted name."""
    knobs: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        for inner in section_types(info.annotation):
            knobs |= float_knobs(inner, f"{prefix}{name}.")
        if info.annotation is float:
            knobs[prefix + name] = info
    return knobs


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        (
            {"optimisation": {"learning_rate": 1e-320}},
            "optimisation.learning_rate",
            "Learning rate must be between 1e-12 and 1.",
        ),
        (
            {"optimisation": {"warmup_steps": 1e308}},
            "optimisation.warmup_steps",
            "Warm-up must be between 0 and 10,000,000.",
        ),
        (
            {"optimisation": {"max_grad_norm": 1e308}},
            "optimisation.max_grad_norm",
            "Gradient clipping must be between 1e-09 and 1,000,000.",
        ),
        (
            {"early_stopping": {"early_stopping_threshold": 0.1}},
            "early_stopping.early_stopping_patience",
            "The min improvement has no effect without patience.",
        ),
    ],
)
def test_value_without_effect_is_reported(change: dict[str, Any], param: str, message: str) -> None:
    conflicts = list(unusable_values(RECIPE_ADAPTER.validate_python(LEAST | change)))

    assert [(conflict.param, conflict.message) for conflict in conflicts] == [(param, message)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimisation": {"warmup_steps": 0.0, "learning_rate": 1e-7}},
        {"early_stopping": {"early_stopping_threshold": 0.1, "early_stopping_patience": 2}},
    ],
)
def test_usual_values_are_accepted(change: dict[str, Any]) -> None:
    assert list(unusable_values(RECIPE_ADAPTER.validate_python(LEAST | change))) == []


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_float_field_is_bounded_above(method: Any) -> None:  # noqa: ANN401 -- any method
    open_ended = [
        name
        for name, info in float_knobs(method.recipe).items()
        if not ((knob := field_spec(info)) and knob.usable_range)
        and not {"lt", "le"} & {side for bound in info.metadata for side in dir(bound)}
    ]

    assert open_ended == []
