"""Compare a quantised model, as it was read back, with the model that was trained."""

import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from studio.errors import InvalidError
from studio.recipe.exports import ExportDType
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export.dtype_conversion import ConversionStats
from studio.training.export.quantised import layers
from studio.weights import safetensors_headers

_HALF_STEPS: Mapping[ExportDType, float] = {"int8": 1 / 254, "nf4": 0.152, "fp4": 1 / 6}
"""The most that a weight may be off, as a share of the largest of its scale: half of the largest
distance between two numbers of its format."""
_SCALE_ROUNDING = 0.02
"""What rounding the scales of 4-bit blocks to 8 bits adds at most."""
_BFLOAT16_ROUNDING = 4 * 2**-9
"""What rounding to bfloat16 adds at most: the weight before it is quantised and after it is read,
and its scale and their product."""

_LIMITS: Mapping[ExportDType, float] = {"int8": 0.02, "nf4": 0.1, "fp4": 0.2}
"""The most that the loss may grow, in nats per token, or this share of it if that is more."""


def compare_weights(
    model: PreTrainedModel, plain: PreTrainedModel, trained: Path, dtype: ExportDType
) -> ConversionStats:
    """Compare the weights that were read back with those in the folder of the trained model.

    Raises:
        InvalidError: one differs by more than its format explains.

    """
    stats, stored = ConversionStats(), dict(model.named_parameters())
    files = {
        tensor.name: tensor.file
        for file in safetensors_headers.weight_files(trained)
        for tensor in safetensors_headers.read_tensors(file)
    }
    for name, value in layers.iter_weights(model, plain):
        if name not in files:
            continue  # tied to another, or stored in parts
        with safe_open(files[name], framework="pt") as opened:
            before, after = opened.get_tensor(name).float(), value.cpu().float()
        if layers.is_quantised(stored[name]):
            _refuse_difference(name, before, after, dtype)
        stats.add(before, after)
    return stats


def _refuse_difference(name: str, before: Tensor, after: Tensor, dtype: ExportDType) -> None:
    largest = before.abs().max().item()
    rounding = _BFLOAT16_ROUNDING + (0 if dtype == "int8" else _SCALE_ROUNDING)
    difference = (after - before).abs().max().item()
    # Not a number fails, too.
    if difference <= largest * (_HALF_STEPS[dtype] + rounding):
        return
    raise InvalidError(
        f"The files differ from the model: read back, a weight of {name} is off by "
        f"{difference:.4g}, where the largest is {largest:.4g}.",
        hint="The package that quantises may lack something of this family. Export the model in "
        "bfloat16.",
    )


def compare_loss(dtype: ExportDType, before: Perplexity | None, after: Perplexity | None) -> None:
    """Refuse files whose loss is higher than the trained model's by more than is usual.

    Raises:
        InvalidError: it is, or it is not a number.

    """
    if before is None or after is None or not math.isfinite(before.loss):
        return
    limit = max(_LIMITS[dtype], _LIMITS[dtype] * before.loss)
    if after.loss - before.loss <= limit:
        return
    raise InvalidError(
        f"Quantised, this model answers much worse: its loss is {after.loss:.6g} instead of "
        f"{before.loss:.6g}.",
        hint="Choose a format with more bits.",
    )
