"""Products of 8 bits before a run: whom they suit, who is refused them, and what is offered."""

from dataclasses import replace

import pytest

from studio.hardware import OPTIONAL_PACKAGES, Gpu, Hardware
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import Refusal, check
from studio.weights.model_facts import ModelFacts
from tests.support.factories import make_recipe

FULL = {"adapter": {"kind": "full"}}
PROCESSOR = Hardware(
    processor="P",
    cores=2,
    memory_bytes=2**34,
    native_bf16=True,
    torch="2.13",
    packages=frozenset(OPTIONAL_PACKAGES),
)
H100 = replace(PROCESSOR, gpus=(Gpu(index=0, name="H100", memory_bytes=2**36, capability=(9, 0)),))
EVEN = ModelFacts(
    family="llama", declared_dtype="bfloat16", parameters=1000, stored={"bfloat16": 1.0}
)
ODD = replace(EVEN, float8_unfit_layers=("a.weight", "b.weight", "c.weight", "d.weight"))


@pytest.mark.parametrize("machine", [PROCESSOR, H100], ids=lambda one: one.title)
def test_fp8_accepts_layer_dimensions_divisible_by_16(machine: Hardware) -> None:
    assert check(make_recipe(precision="fp8", **FULL), EVEN, machine) == []


def test_fp8_rejects_layers_not_divisible_by_16_by_name() -> None:
    assert check(make_recipe(precision="fp8", **FULL), ODD, H100) == [
        Refusal(
            message=(
                "float8 mixed does not support a.weight, b.weight, c.weight and 1 more: 8-bit "
                "products need layers whose dimensions are multiples of 16."
            ),
            hint="Use bfloat16 mixed.",
            param="precision",
            repair={"precision": "bf16"},
        )
    ]


def test_bf16_accepts_layers_not_divisible_by_16() -> None:
    assert check(make_recipe(precision="bf16", **FULL), ODD, H100) == []


def test_fp8_without_torchao_is_rejected_with_repair() -> None:
    bare = replace(H100, packages=frozenset())
    (found,) = check(make_recipe(precision="fp8", **FULL), EVEN, bare)

    assert (found.message, found.repair) == (
        (
            "float8 mixed cannot be used here: it needs the package torchao, "
            "which is not installed: "
            "pip install 'mantissa-studio[fp8]'."
        ),
        {"precision": "bf16"},
    )


def test_fp8_with_adapter_is_rejected_with_repair() -> None:
    (found,) = check(make_recipe(precision="fp8"), EVEN, H100)

    assert (found.message, found.repair) == (
        "float8 mixed sets the format of trained weights; an adapter's are float32.",
        {"precision": "bf16"},
    )


@pytest.mark.parametrize("machine", [PROCESSOR, H100], ids=lambda one: one.title)
def test_fp8_is_never_recommended(machine: Hardware) -> None:
    chosen = recommendation.recommend(make_recipe(precision="fp8", **FULL), EVEN, machine).mode

    assert chosen.name == "bf16"
