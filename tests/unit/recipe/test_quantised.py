"""What quantised formats say of themselves: what they need, and what they go with."""

from dataclasses import replace

import pytest

from studio.hardware import Gpu, Hardware
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.recipe.base import find_conflict
from studio.recipe.precision import PRECISIONS, QUANTISED, PrecisionName

BARE = Hardware(processor="A processor", cores=2, memory_bytes=0, native_bf16=True)
PROCESSOR = replace(BARE, packages=frozenset({"bitsandbytes"}))
VOLTA = replace(
    PROCESSOR,
    torch="2.13.0+cu126",
    gpus=(Gpu(index=0, name="Tesla V100", memory_bytes=0, capability=(7, 0)),),
)


def beside(base_dtype: str, precision: PrecisionName = "bf16") -> AnyRecipe:
    adapter = {"kind": "lora", "base_dtype": base_dtype}
    told = {"base_model": "m", "dataset": "d", "method": "sft", "precision": precision}
    return RECIPE_ADAPTER.validate_python(told | {"adapter": adapter})


@pytest.mark.parametrize("name", QUANTISED)
def test_cpu_supports_every_quantised_format(name: str) -> None:
    assert QUANTISED[name].unsupported_reason(PROCESSOR) == ""


@pytest.mark.parametrize("name", QUANTISED)
def test_missing_bitsandbytes_reason_gives_install_command(name: str) -> None:
    assert QUANTISED[name].unsupported_reason(BARE) == (
        "needs the package bitsandbytes, which is not installed: "
        "pip install 'mantissa-studio[quantised]'"
    )


def test_older_gpu_supports_only_4_bit_weights() -> None:
    assert {name: row.unsupported_reason(VOLTA) for name, row in QUANTISED.items()} == {
        "int8": "needs a GPU with compute capability 7.5 or newer; Tesla V100 has 7.0",
        "nf4": "",
    }


@pytest.mark.parametrize(
    ("base_dtype", "packages"),
    [("native", set()), ("bfloat16", set()), ("int8", {"bitsandbytes"}), ("nf4", {"bitsandbytes"})],
)
def test_recipe_lists_required_packages(base_dtype: str, packages: set[str]) -> None:
    assert beside(base_dtype).packages == packages


def test_full_fine_tune_needs_no_optional_packages() -> None:
    told = {"base_model": "m", "dataset": "d", "method": "sft", "adapter": {"kind": "full"}}

    assert RECIPE_ADAPTER.validate_python(told).packages == frozenset()


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_quantised_weights_allow_compatible_precisions(name: str, precision: PrecisionName) -> None:
    assert find_conflict(beside(name, precision)) is None


@pytest.mark.parametrize("precision", ["fp32_tf32", "fp32_bf16_matmul"])
def test_nf4_conflicts_with_precisions_that_change_matmul(precision: PrecisionName) -> None:
    found = find_conflict(beside("nf4", precision))

    assert found is not None
    assert (found.message, found.param) == (
        (
            f"{PRECISIONS[precision].title} changes products of float32 weights, but nf4 weights "
            "use their own product kernels."
        ),
        "precision",
    )


def test_nf4_bytes_per_weight_include_scales() -> None:
    weights = 64 * 256

    taken = QUANTISED["nf4"].bytes_per_weight * weights

    # 256 blocks with a byte of scale each, and four bytes for all of them.
    assert taken == weights / 2 + 256 + 4
