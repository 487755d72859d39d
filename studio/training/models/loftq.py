"""Adapters that start with what quantising the base model has rounded away (LoftQ).

The two matrices of a layer start as the best approximation, at their rank, of the difference
between its saved weight and its quantised one, so that both together are closer to the model as it
was saved (https://arxiv.org/abs/2310.08659, with one step and the quantised weights as they are, as
in `peft.replace_lora_weights_loftq`, which needs a GPU and ignores the adapter's scale).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from studio.errors import TrainingError
from studio.training.models import adapter_base
from studio.weights import family_limits

_ADAPTER = "default"  # peft's name for the trained adapter
_PREFIX = "base_model.model."


@torch.no_grad()
def initialise(model: PeftModel, files: Sequence[Path]) -> None:
    """Start an adapter with the rounding of its quantised base, whose weights are in `files`.

    Raises:
        TrainingError: a quantised weight is in no file under its own name.

    """
    layers: list[tuple[str, Any]] = [
        (name, part) for name, part in model.named_modules() if isinstance(part, LoraLayer)
    ]
    is_transposed = model.config.model_type in family_limits.TRANSPOSED
    places = _places(files, model.get_base_model().base_model_prefix)
    for name, layer in layers:
        inner, outer = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        if isinstance(inner.data, FakeTensor):
            return
        base = layer.get_base_layer()
        quantised = adapter_base.dequantised_value(base, base.weight).float()
        saved = _read(places, name.removeprefix(_PREFIX)).to(quantised)
        rounding = (saved.T if is_transposed else saved) - quantised
        left, values, right = torch.linalg.svd(rounding, full_matrices=False)
        rank = min(len(inner), len(values))
        roots = (values[:rank] / layer.scaling[_ADAPTER]).sqrt()
        inner[:rank] = roots[:, None] * right[:rank]
        outer[:, :rank] = left[:, :rank] * roots


_Places = dict[str, tuple[Path, str]]
"""The file of each layer's weight, and its name there."""


def _places(files: Sequence[Path], prefix: str) -> _Places:
    """Return where the weight of each layer is saved; files may leave the model's prefix out."""
    found: _Places = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 -- it is no mapping
                layer = key.removesuffix(".weight")
                found |= {layer: (file, key), f"{prefix}.{layer}": (file, key)}
    return found


def _read(places: _Places, layer: str) -> Tensor:
    if layer not in places:
        raise TrainingError(
            "conflict",
            f"The files of this model have no weight named {layer}, which LoftQ compares with the "
            "quantised one.",
            hint="Choose plain LoRA.",
        )
    file, key = places[layer]
    with safe_open(file, framework="pt") as opened:
        tensor: Tensor = opened.get_tensor(key)
    return tensor
