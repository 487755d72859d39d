"""The precisions of other tools: what their switches make of weights and of products."""

from collections.abc import Mapping
from typing import Any

from studio.services.recipe_imports.table import Convert, SourceFile, Use, is_off

_NAMES = {"bfloat16": "bf16", "float16": "fp16"}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "half": "float16"}

FROZEN_ONLY = (
    "Next to an adapter, only the frozen model is in bfloat16 here: the adapter's weights and "
    "their optimizer stay in float32."
)
ALL_BFLOAT16 = (
    "There, the weights themselves are loaded in bfloat16, so it trains in bfloat16 throughout, "
    "and so it does here. Small updates may round to zero: bfloat16 mixed keeps float32 weights."
)
FLOAT32_WEIGHTS = (
    "There, the weights themselves are float16, whose gradients its loss scaling refuses. Here, "
    "they are float32, and products are float16."
)
FLOAT8_PRODUCTS = "float8 is for full fine-tunes here: next to an adapter, it is bfloat16 mixed."
FLOAT32_ADAPTER = (
    "There, the adapter of a quantised model is rounded to bfloat16. Here, it stays in float32."
)
AS_SAVED = (
    "There, it computes in the format of the model's file. Here, the studio recommends a precision "
    "for the model and the machine."
)


def dtype(name: object) -> str:
    """Return the full name of a format: `bf16` is bfloat16."""
    text = str(name).lower().removeprefix("torch.")
    return _SHORT.get(text, text)


def mixed(compute: str) -> str:
    """Return the mode that computes in a format, and keeps trained weights in float32."""
    return _NAMES.get(compute, "fp32")


def for_adapter(compute: str, frozen: str, *, is_quantised: bool = False) -> Use:
    """Return the precision of an adapter next to a frozen model in a format.

    What quantised models do not quantise has the compute format, there as here.
    """
    settings: dict[str, Any] = {"precision": mixed(compute)}
    if not is_quantised:
        settings["adapter.base_dtype"] = frozen
    return Use(settings)


def for_full(compute: str, weights: str) -> Use:
    """Return the precision of a full fine-tune whose weights are loaded in a format."""
    if weights == "bfloat16":
        return Use({"precision": "bf16_pure"}, ALL_BFLOAT16)
    if weights == "float16":
        return Use({"precision": "fp16"}, FLOAT32_WEIGHTS)
    return Use({"precision": mixed(compute)})


def with_note(used: Use, note: str) -> Use:
    return Use(used.settings, f"{used.note} {note}".strip())


def quantised(bits: Mapping[int, str], value: object) -> str:
    """Return our name of so many bits; empty if there is none."""
    try:
        return bits.get(int(str(value)), "")
    except ValueError:
        return ""


def with_tf32(used: Use, *, is_on: bool) -> Use:
    """Return a precision whose products read TF32, if they are of float32 at all."""
    if not is_on or used.settings.get("precision") != "fp32":
        return used
    return Use({**used.settings, "precision": "fp32_tf32"}, used.note)


def if_on(convert: Convert) -> Convert:
    """Return a conversion of a switch that says nothing if it is off."""

    def converted(value: object, file: SourceFile) -> object:
        return Use() if is_off(value) else convert(value, file)

    return converted
