"""What a narrower format does to weights, measured without torch."""

import math
from pathlib import Path

import pytest

from studio.recipe.precision import DType
from studio.services.precision import number_formats, recommendation
from studio.services.precision.incompatibilities import check
from studio.weights import model_facts
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_recommendation import H100
from tests.unit.weights import safetensors_folders

THIRD = 1 / 3


def test_exactly_representable_formats_need_no_rounding(tmp_path: Path) -> None:
    values: safetensors_folders.Values = {"a": ("BF16", [0.5, 1.0]), "b": ("F16", [0.25])}
    found = model_facts.read(safetensors_folders.write(tmp_path, values))

    assert set(found.casts) == {"bfloat16", "float16"}
    assert found.casts["bfloat16"].stored == ("float16",)
    assert found.casts["float16"].stored == ("bfloat16",)


@pytest.mark.parametrize(
    ("to", "largest"), [("bfloat16", 2**-9), ("float16", 2**-12)], ids=["bfloat16", "float16"]
)
def test_measured_cast_error_is_within_half_step(tmp_path: Path, to: DType, largest: float) -> None:
    values = [0.5 + place * 0.6180339887 % 0.5 for place in range(2048)]
    cast = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("F32", values)})).casts[to]

    assert (cast.weights, cast.sampled, cast.stored) == (2048, 2048, ("float32",))
    assert cast.changed > 0.99
    assert largest / 2 < cast.max_relative_change <= 2 * largest
    assert 0 < cast.mean_relative_change < cast.max_relative_change


@pytest.mark.parametrize(
    ("to", "value", "change"),
    [
        ("bfloat16", 1 + 2**-7, 0.0),
        # Half a step above an even number, ties go down; above an odd one, up.
        ("bfloat16", 1 + 2**-8, 2**-8 / (1 + 2**-8)),
        ("bfloat16", 1 + 3 * 2**-8, 2**-8 / (1 + 3 * 2**-8)),
        ("bfloat16", THIRD, abs(0.333984375 - THIRD) / THIRD),
        ("float16", THIRD, abs(0.333251953125 - THIRD) / THIRD),
        ("float16", 1e-9, 1.0),
    ],
)
def test_single_weight_is_rounded_to_nearest(
    tmp_path: Path, to: DType, value: float, change: float
) -> None:
    cast = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("F64", [value])})).casts[to]

    assert cast.max_relative_change == pytest.approx(change, rel=1e-6)


def test_overflowing_weights_do_not_count_as_relative_change(tmp_path: Path) -> None:
    cast = model_facts.read(
        safetensors_folders.write(tmp_path, {"a": ("F32", [1e6, 1.0, math.nan])})
    ).casts["float16"]

    assert (cast.sampled, cast.changed, cast.max_relative_change) == (1, 0.0, 0.0)


def test_precision_plan_reports_rounded_weights(tmp_path: Path) -> None:
    """The file is float32 and the config says bfloat16: as it was saved it rounds nothing."""
    folder = safetensors_folders.write(tmp_path, {"a": ("F32", [THIRD] * 8)}, dtype="bfloat16")
    found = model_facts.read(folder)
    native = make_recipe(precision="bf16", adapter={"kind": "lora"})
    narrow = make_recipe(precision="bf16", adapter={"kind": "lora", "base_dtype": "bfloat16"})

    assert (
        number_formats.plan_dtypes(native, found).weights,
        number_formats.plan_dtypes(native, found).rounded,
    ) == (
        "float32",
        None,
    )
    assert not any("rounded" in one for one in recommendation.list_warnings(native, found))
    rounded = number_formats.plan_dtypes(narrow, found).rounded
    assert rounded is not None
    assert (rounded.to, rounded.weights, rounded.changed) == ("bfloat16", 8, 1.0)
    (said,) = (one for one in recommendation.list_warnings(narrow, found) if "rounded" in one)
    assert said == (
        "8 weights stored in float32 are rounded to bfloat16 on loading: of 8 sampled weights, "
        "100 % change, by 0.2 % on average and 0.2 % at most."
    )


def test_mixed_format_file_keeps_both_formats(tmp_path: Path) -> None:
    shapes = {
        "model.embed_tokens.weight": ("BF16", [64, 8]),
        "a.weight": ("BF16", [8, 8]),
        "b.weight": ("F32", [8, 8]),
        "norm.weight": ("BF16", [8]),
    }
    found = model_facts.read(
        safetensors_folders.write_empty(tmp_path, shapes, vocab_size=64, dtype="bfloat16")
    )
    told = number_formats.plan_dtypes(
        make_recipe(precision="bf16", adapter={"kind": "lora"}), found
    )

    assert (told.weights, told.rounded) == ("bfloat16 and float32", None)
    assert told.sizes is not None
    assert told.sizes.weights == 2 * (64 * 8 + 64) + 4 * (64 + 8)
    # Autocast keeps a narrow copy of what is wider, and of the adapter.
    assert told.sizes.copies == 2 * 64 + 2 * (told.trained_parameters or 0)
    full = number_formats.plan_dtypes(
        make_recipe(precision="fp32", adapter={"kind": "full"}), found
    )
    assert (full.weights, full.rounded) == ("float32", None)


@pytest.mark.parametrize("code", ["F8_E4M3", "I8", "U8"])
def test_packed_weights_without_quantisation_config_are_rejected(tmp_path: Path, code: str) -> None:
    shapes = {"a.weight": (code, [8, 8]), "b.weight": ("BF16", [8, 8])}
    found = model_facts.read(safetensors_folders.write_empty(tmp_path, shapes))
    (refused,) = check(make_recipe(precision="bf16"), found, H100)

    assert refused.message == (
        "Stored in 8 bits or fewer: a.weight. The config does not say how to read them; choose "
        "the original model."
    )
