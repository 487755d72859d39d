"""What is said of a quantised base before a run starts: plan, refusals with repairs, cautions."""

from dataclasses import replace

import pytest

from studio.hardware import Hardware
from studio.methods import AnyRecipe
from studio.recipe.precision import PrecisionName
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import Refusal, check
from studio.services.precision.number_formats import plan_dtypes
from studio.weights import family_limits
from studio.weights.model_facts import ModelFacts
from studio.weights.weight_samples import WeightStats
from tests.support.factories import make_recipe

BARE = Hardware(processor="A processor", cores=2, memory_bytes=0, native_bf16=True)
HERE = replace(BARE, packages=frozenset({"bitsandbytes"}))
NATIVE = {"adapter": {"base_dtype": "native"}}
MODEL = ModelFacts(
    family="llama",
    declared_dtype="bfloat16",
    parameters=1_500_000,
    stored={"bfloat16": 1.0},
    linear_features=5000,
    linear_parameters=1_000_000,
    linear_rows=3000,
    stats=WeightStats(sampled=1000, largest=1.0, exponent_shares={-6: 1.0}),
    quantisation_errors={"int8": 0.009, "nf4": 0.0943},
)


def beside(base_dtype: str, precision: PrecisionName = "bf16") -> AnyRecipe:
    return make_recipe(precision=precision, adapter={"kind": "lora", "base_dtype": base_dtype})


def only(recipe: AnyRecipe, facts: ModelFacts = MODEL, hardware: Hardware = HERE) -> Refusal:
    (found,) = check(recipe, facts, hardware)
    return found


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_supported_model_is_accepted(kind: str) -> None:
    assert check(beside(kind), MODEL, HERE) == []


@pytest.mark.parametrize(
    ("kind", "precision", "expected"),
    [
        ("int8", "bf16", 1_000_000 + 4 * 3000 + 2 * 500_000),
        ("int8", "fp32", 1_000_000 + 4 * 3000 + 4 * 500_000),
        ("nf4", "bf16", 515_869 + 2 * 500_000),
        ("native", "bf16", 2 * 1_500_000),
    ],
)
def test_plan_counts_bytes_of_quantised_model(
    kind: str, precision: PrecisionName, expected: int
) -> None:
    sizes = plan_dtypes(beside(kind, precision), MODEL).sizes

    assert sizes is not None
    assert sizes.weights == expected


@pytest.mark.parametrize(
    ("kind", "precision", "expected"),
    [
        ("nf4", "bf16", ("nf4", "bfloat16", "bfloat16")),
        ("nf4", "fp16", ("nf4", "float16", "float16")),
        ("int8", "fp32", ("int8", "float32", "float32")),
        ("native", "bf16", ("bfloat16", None, "bfloat16")),
    ],
)
def test_plan_gives_quantised_and_compute_dtypes(
    kind: str, precision: PrecisionName, expected: tuple[str, str | None, str]
) -> None:
    told = plan_dtypes(beside(kind, precision), MODEL)

    assert (told.weights, told.rest, told.compute) == expected
    assert told.trained == "float32"


def test_missing_bitsandbytes_is_rejected_with_repair() -> None:
    found = only(beside("nf4"), hardware=BARE)

    assert (found.message, found.repair) == (
        (
            "4-bit (NF4) cannot be used here: it needs the package bitsandbytes, "
            "which is not installed: "
            "pip install 'mantissa-studio[quantised]'."
        ),
        NATIVE,
    )


def test_expert_model_is_rejected_with_repair() -> None:
    found = only(beside("nf4"), replace(MODEL, expert_parameters=1_200_000))

    assert (found.message, found.repair) == (
        (
            "80 % of this model's weights are experts, which are not linear layers and would stay "
            "in bfloat16: 4-bit (NF4) would save almost nothing."
        ),
        NATIVE,
    )


def test_int8_rejects_weights_beyond_float16_but_nf4_accepts() -> None:
    spread = WeightStats(sampled=1000, largest=70000.0, over_float16=12)
    wide = replace(MODEL, stats=spread)

    found = only(beside("int8"), wide)

    assert found.message.endswith("8-bit (LLM.int8) weights are quantised from float16.")
    assert found.repair == NATIVE
    assert check(beside("nf4"), wide, HERE) == []


@pytest.mark.parametrize("kind", ["native", "nf4"])
def test_already_quantised_model_is_rejected(kind: str) -> None:
    found = only(beside(kind), replace(MODEL, quantised="gptq"))

    assert (found.param, found.repair) == ("base_model", {})
    assert found.message.startswith("This model is already quantised (gptq)")


@pytest.mark.parametrize("family", sorted(family_limits.NO_ADAPTER_LAYERS))
def test_family_that_bypasses_layers_is_not_quantised(family: str) -> None:
    found = only(beside("nf4"), replace(MODEL, family=family))

    assert found.message.startswith(
        f"{family} models read weights without going through their layers"
    )
    assert check(beside("native"), replace(MODEL, family=family), HERE) == []


@pytest.mark.parametrize(
    ("kind", "measured"),
    [
        ("nf4", "4-bit (NF4) changes weights by 9.4 %"),
        ("int8", "8-bit (LLM.int8) changes weights by 0.9 %"),
    ],
)
def test_rounding_warning_gives_measured_error(kind: str, measured: str) -> None:
    assert list(recommendation.list_warnings(beside(kind), MODEL)) == [
        (
            f"{measured} of their size (root mean square over a sample of this model's weights): "
            "it starts slightly worse than the saved model."
        )
    ]


def test_unmeasured_rounding_gives_no_warning() -> None:
    assert (
        list(recommendation.list_warnings(beside("nf4"), replace(MODEL, quantisation_errors={})))
        == []
    )
