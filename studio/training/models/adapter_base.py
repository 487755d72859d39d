"""Load the base an adapter was trained on, as the run loaded it, in float32.

What a run rounds or quantises when it loads its base is part of what was trained: the adapter
learned to compensate for it. Merged into the base as it was saved, it makes a different model.
"""

from pathlib import Path
from typing import Any

import torch
from peft.utils.integrations import dequantize_bnb_weight
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from studio import hardware
from studio.errors import InvalidError
from studio.protocols.run_dir import JobSpec
from studio.recipe.adapters import AnyAdapter
from studio.recipe.precision import Precision
from studio.training.models import loader, quantised_weights, weight_formats
from studio.weights.architectures import WRITING_KINDS


def load(
    name: str,
    code: str,
    mode: Precision,
    adapter: AnyAdapter,
    *,
    is_wide: bool = True,
    saved: Path | None = None,
) -> PreTrainedModel:
    """Load the base as the run did, quantised if it was, and widen everything else to float32.

    If the model got a head, `saved` is the folder of its adapter, whose config describes it.

    Raises:
        InvalidError: it was quantised, and this machine does not support that.

    """
    quantised = adapter.quantised
    if quantised is not None and (reason := quantised.unsupported_reason(hardware.detect())):
        raise InvalidError(
            f"This adapter was trained on its base in {quantised.title}, which {reason}.",
            hint="Install what is missing, or do this on the machine it was trained on.",
        )
    config = _load_config(name, code, saved)
    formats = weight_formats.choose_formats(name, config, mode, adapter, code)
    model = loader.load_model(name, config, formats.main, quantised, code, formats.own)
    if is_wide:
        _cast_to_float32(model)
    return model


def load_head_config(folder: Path) -> PreTrainedConfig:
    """Read the config of a model with a head, which is saved next to its weights or adapter."""
    return loader.load_config(str(folder), kinds=frozenset({"classifier", "encoder"}))


def load_original(spec: JobSpec, saved: Path | None = None) -> PreTrainedModel:
    """Load the base as it was saved, in float32; with a head if `saved` describes one."""
    config = _load_config(spec.model, spec.code, saved)
    return loader.load_model(spec.model, config, "float32", code=spec.code)


def _load_config(name: str, code: str, saved: Path | None) -> PreTrainedConfig:
    if saved is not None:
        return load_head_config(saved)
    return loader.load_config(name, code, kinds=WRITING_KINDS)


def dequantise(model: PreTrainedModel, plain: PreTrainedModel) -> PreTrainedModel:
    """Return the plain model, with the dequantised weights that a quantised base computes with."""
    for path, layer in model.named_modules():
        plain_layer = plain.get_submodule(path)
        for name, weight in layer.named_parameters(recurse=False):
            # bitsandbytes stores GPT-2's Conv1D layers transposed.
            is_transposed = isinstance(plain_layer, Conv1D) and name == "weight"
            value = dequantised_value(layer, weight)
            plain_layer.get_parameter(name).data.copy_(value.T if is_transposed else value)
    return plain


def dequantised_value(layer: nn.Module, weight: nn.Parameter) -> Tensor:
    """Return what a weight stands for, with one row per output if it is quantised."""
    if not quantised_weights.is_quantised(weight):
        return weight.data
    value: Tensor = dequantize_bnb_weight(weight, state=getattr(layer, "state", None))
    return value


def _cast_to_float32(model: nn.Module) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()
    modules: list[Any] = list(model.modules())
    for module in modules:
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = torch.float32
