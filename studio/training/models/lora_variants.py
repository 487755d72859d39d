"""Adapters that start as a part of the base model's weights (PiSSA, OLoRA).

Such an adapter takes its start out of the base model, so that both together are the model before
training. The start is saved once in the run's folder: a resumed run reads it, bit for bit, and
saved weights subtract it again, so that they are a plain LoRA adapter of the original base model:

    (W - s·B0·A0) + s·B·A  =  W + s·[B, -B0]·[A; A0]
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from studio.errors import TrainingError
from studio.recipe.lora_variants import LoraVariant

_ADAPTER = "default"  # peft's name for the trained adapter


@torch.no_grad()
def split_base(model: PeftModel, variant: LoraVariant, file: Path) -> None:
    """Start the adapter as a part of the base model's weights, which lose that part.

    The start is read from `file`, or computed and written there.

    Raises:
        TrainingError: the rank is larger than a side of a weight.

    """
    saved = load_file(file) if file.is_file() else {}
    starts: dict[str, Tensor] = {}
    for name, layer in _lora_layers(model):
        inner, outer = (layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight)
        names = (f"{name}.lora_A.{_ADAPTER}.weight", f"{name}.lora_B.{_ADAPTER}.weight")
        scaling = layer.scaling[_ADAPTER]
        if saved:
            first, second = (saved[key].to(inner.device) for key in names)
        else:
            first, second = _decompose(name, _weight(layer), len(inner), scaling, variant)
        inner.data, outer.data = first, second
        starts |= {names[0]: first, names[1]: second}
        _subtract(layer, scaling * (second @ first))
    if not saved:
        _write(starts, file)


def plain_config(config: LoraConfig) -> LoraConfig:
    """Return the config of the plain adapter that such an adapter is saved as."""
    plain = copy.copy(config)
    plain.r = 2 * config.r
    # The scale stays: it is alpha / r, or alpha / sqrt(r).
    plain.lora_alpha = config.lora_alpha * (math.sqrt(2) if config.use_rslora else 2)
    return plain


def plain_weight(name: str, weight: Tensor, starts: Mapping[str, Tensor]) -> Tensor:
    """Return a weight of the plain adapter; weights without a start stay as they are."""
    start = starts.get(name)
    if start is None:
        return weight
    start = start.to(weight)
    if ".lora_A." in name:
        return torch.cat([weight, start])
    return torch.cat([weight, -start], dim=1)


@contextmanager
def plain_adapter(model: PeftModel, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the weights of the plain adapter for `save_pretrained`; the config is the plain one."""
    starts, config = load_file(file), model.peft_config[_ADAPTER]
    model.peft_config[_ADAPTER] = plain_config(config)
    try:
        yield {name: plain_weight(name, p, starts) for name, p in model.state_dict().items()}
    finally:
        model.peft_config[_ADAPTER] = config


def _lora_layers(model: PeftModel) -> list[tuple[str, Any]]:
    return [(name, part) for name, part in model.named_modules() if isinstance(part, LoraLayer)]


def _weight(layer: Any) -> Tensor:  # noqa: ANN401 -- peft's layers have no common type
    """Return a layer's weight in float32, with one row per output."""
    weight: Tensor = layer.get_base_layer().weight.data.float()
    return weight.T if layer.fan_in_fan_out else weight


def _subtract(layer: Any, part: Tensor) -> None:  # noqa: ANN401 -- the same
    base = layer.get_base_layer().weight
    rest = _weight(layer) - part
    base.data = (rest.T if layer.fan_in_fan_out else rest).contiguous().to(base.dtype)


def _decompose(
    name: str, weight: Tensor, rank: int, scaling: float, variant: LoraVariant
) -> tuple[Tensor, Tensor]:
    """Return the two matrices that the adapter of a weight starts with."""
    if rank > min(weight.shape):
        raise TrainingError(
            "conflict",
            f"{variant.title} takes an adapter of rank {rank} out of each weight, and {name} has "
            f"only {min(weight.shape)} rows or columns.",
            hint="Lower the LoRA rank, or choose plain LoRA.",
        )
    if variant.name == "olora":
        columns, rows = torch.linalg.qr(weight)
        return rows[:rank].contiguous(), columns[:, :rank].contiguous()
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    roots = (values[:rank] / scaling).sqrt()
    return (roots[:, None] * right[:rank]).contiguous(), (left[:, :rank] * roots).contiguous()


def _write(starts: Mapping[str, Tensor], file: Path) -> None:
    """Write the start of an adapter: the file is complete or absent."""
    if any(isinstance(start, FakeTensor) for start in starts.values()):
        return
    partial = file.with_suffix(".partial")
    save_file(dict(starts), partial)
    partial.replace(file)
