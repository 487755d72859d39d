"""Knobs that exclude each other are named before a run waits for nothing."""

from typing import Any

import pytest

from studio.methods import RECIPE_ADAPTER
from studio.recipe.base import Conflict, find_conflict

BARE: dict[str, Any] = {"method": "sft", "base_model": "m", "dataset": "d"}
FULL = {"adapter": {"kind": "full"}}


def found(**changes: object) -> Conflict | None:
    return find_conflict(RECIPE_ADAPTER.validate_python(BARE | changes))


def test_default_recipe_has_no_conflict() -> None:
    assert found() is None


def test_bf16_kahan_is_allowed_with_full_fine_tune() -> None:
    assert found(precision="bf16_kahan", **FULL) is None


def test_bf16_kahan_is_rejected_with_adapter() -> None:
    assert found(precision="bf16_kahan") == Conflict(
        message=(
            "bfloat16, Kahan summation sets the format of trained weights; an adapter's are "
            "float32."
        ),
        hint="Choose a full fine-tune, or bfloat16 mixed with the frozen model in bfloat16.",
        param="precision",
    )


def test_bf16_dual_rejects_other_optimizers() -> None:
    refused = found(precision="bf16_dual", optimisation={"optim": "sgd"}, **FULL)

    assert refused == Conflict(
        message=(
            "bfloat16 weights, float32 master uses its own optimizer, AdamW with float32 master, "
            "instead of sgd."
        ),
        hint="Choose AdamW, or another precision.",
        param="optimisation.optim",
    )


def test_fp8_is_rejected_with_adapter() -> None:
    assert found(precision="fp8") == Conflict(
        message="float8 mixed sets the format of trained weights; an adapter's are float32.",
        hint="Choose a full fine-tune, or bfloat16 mixed with the frozen model in bfloat16.",
        param="precision",
    )


def test_fp8_is_allowed_with_sgd() -> None:
    assert found(precision="fp8", optimisation={"optim": "sgd"}, **FULL) is None


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_bf16_dual_accepts_any_adamw_variant(optim: str) -> None:
    assert found(precision="bf16_dual", optimisation={"optim": optim}, **FULL) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_frozen_dtype_is_rejected_without_autocast(dtype: str) -> None:
    refused = found(precision="fp32", adapter={"kind": "lora", "base_dtype": dtype})

    assert refused == Conflict(
        message=f"A frozen model in {dtype} computes in {dtype}, not in float32.",
        hint="Keep the frozen model as saved, or choose a mixed precision.",
        param="adapter.base_dtype",
    )


@pytest.mark.parametrize("dtype", ["native", "float32", "bfloat16", "float16"])
def test_mixed_precision_accepts_any_frozen_dtype(dtype: str) -> None:
    assert found(precision="bf16", adapter={"kind": "lora", "base_dtype": dtype}) is None


def test_length_penalty_needs_beams() -> None:
    refused = found(method="seq2seq", rewriting={"length_penalty": 2.0})

    assert refused is not None
    assert refused.param == "rewriting.length_penalty"
    assert found(method="seq2seq", rewriting={"length_penalty": 2.0, "num_beams": 2}) is None
