"""What is said of OFT and IA3 adapters before a run starts: sizes, and refusals with repairs."""

from dataclasses import replace
from typing import Any

import pytest

from studio.methods import AnyRecipe
from studio.services.precision.incompatibilities import check
from studio.services.precision.number_formats import plan_dtypes
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL
from tests.unit.services.precision.test_quantised import HERE


def with_adapter(kind: str, **adapter: object) -> AnyRecipe:
    return make_recipe(precision="bf16", adapter={"kind": kind, **adapter})


def trained(kind: str, **adapter: object) -> int | None:
    return plan_dtypes(with_adapter(kind, **adapter), MODEL).trained_parameters


def test_plan_counts_a_triangle_per_block_of_inputs() -> None:
    inputs = sum(layer.inputs for layer in MODEL.linear_layers)

    assert trained("oft", oft_block_size=16) == inputs // 16 * (16 * 15 // 2)


def test_plan_counts_a_factor_per_channel() -> None:
    width, inner, keys, layers = 64, 128, 16, 2
    attention, mlp = width + 2 * keys + width, 2 * inner + inner

    assert trained("ia3") == layers * (attention + mlp)
    assert trained("ia3", target_modules="mlp", last_layers=1) == mlp
    assert trained("ia3", module_names="k_proj, v_proj, down_proj") == layers * (2 * keys + inner)


@pytest.mark.parametrize(
    ("adapter", "message", "repair"),
    [
        (
            {"kind": "oft", "oft_block_size": 24},
            "Blocks of 24 do not divide the 64 inputs of ",
            {"oft_block_size": 32},
        ),
        (
            {"kind": "ia3", "base_dtype": "nf4"},
            "An IA3 adapter on weights in nf4",
            {"kind": "lora"},
        ),
    ],
)
def test_refusals_have_a_repair(
    adapter: dict[str, Any], message: str, repair: dict[str, object]
) -> None:
    (refusal,) = check(with_adapter(**adapter), MODEL, HERE)

    assert message in refusal.message
    assert refusal.repair == {"adapter": repair}


def test_transposed_layers_cannot_be_rotated_but_scaled() -> None:
    transposed = replace(MODEL, family="gpt2")

    (refusal,) = check(with_adapter("oft"), transposed, HERE)
    assert "transposed layers of gpt2 models" in refusal.message
    assert check(with_adapter("ia3"), transposed, HERE) == []


def test_rotations_suit_quantised_weights() -> None:
    assert check(with_adapter("oft", base_dtype="nf4"), MODEL, HERE) == []
