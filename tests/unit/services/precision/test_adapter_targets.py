"""Adapters for a part of a model's layers: trained weights, and refusals with what there is."""

from typing import Any

import pytest

from studio.methods import AnyRecipe
from studio.services.precision.incompatibilities import check
from studio.services.precision.number_formats import plan_dtypes
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL
from tests.unit.services.precision.test_quantised import HERE


def lora(**adapter: object) -> AnyRecipe:
    return make_recipe(precision="bf16", adapter={"kind": "lora", "r": 8, **adapter})


def trained(**adapter: object) -> int:
    found = plan_dtypes(lora(**adapter), MODEL).trained_parameters
    assert found is not None
    return found


def test_plan_counts_trained_parameters_of_the_chosen_layers() -> None:
    """The model has two layers of width 64, keys of width 16 and an MLP of width 128."""
    attention = 8 * 2 * (128 + 80 + 80 + 128)
    mlp = 8 * 2 * 3 * 192

    assert trained(target_modules="attention") == attention
    assert trained(target_modules="mlp") == mlp
    assert trained() == attention + mlp
    assert trained(last_layers=1) == (attention + mlp) // 2
    assert trained(module_names="q_proj,o_proj") == 8 * 2 * 256
    assert trained(module_names="q_proj", variant="dora") == 8 * 2 * 128 + 2 * 64


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (
            {"module_names": "q_proj, query_key_value"},
            (
                "None of the linear layers of this model is named query_key_value. It has q_proj, "
                "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj."
            ),
        ),
        (
            {"module_names": "up_proj", "target_modules": "attention"},
            (
                "None of the attention layers of this model is named up_proj. It has q_proj, "
                "k_proj, v_proj, o_proj."
            ),
        ),
        ({"last_layers": 3}, "This model has 2 layers, so its last 3 do not exist."),
    ],
)
def test_missing_layers_are_refused_with_what_there_is(
    adapter: dict[str, Any], message: str
) -> None:
    (refusal,) = check(lora(**adapter), MODEL, HERE)

    assert refusal.message == message
    assert refusal.repair["adapter"].items() >= {"module_names": None}.items()


def test_existing_layers_are_accepted() -> None:
    names = "q_proj , v_proj"
    assert check(lora(module_names=names, target_modules="attention"), MODEL, HERE) == []
    assert check(lora(last_layers=2), MODEL, HERE) == []
