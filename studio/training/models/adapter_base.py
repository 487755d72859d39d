"""Load the base an adapter was trained on, as the run loaded it, in float32.

What a run rounds or quantises when it loads its base is part of what was trained: the adapter
learned to compensate for it. Merged into the base as it was saved, it makes a different model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft.utils.integrations import dequantize_bnb_weight
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from studio import hardware
from studio.errors import InvalidError
from studio.recipe.adapters import AnyAdapter
from studio.recipe.model_options import ModelOptions
from studio.recipe.precision import Precision
from studio.training.models import (
    heads,
    loader,
    new_tokens,
    positions,
    quantised_weights,
    weight_formats,
)
from studio.weights.architectures import WRITING_KINDS, ModelKind

_READING_KINDS: frozenset[ModelKind] = frozenset({"causal", "classifier", "embedding", "encoder"})
"""The kinds of models with a head, or that give vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSource:
    """Where the base of an adapter is, and what the run changed of it besides its formats."""

    name: str
    code: str
    head: Path | None = None
    """The folder of the adapter, whose config describes the head that the model got, if any."""
    gives_vectors: bool = False
    """Whether it is loaded without the layer that writes, or any other head."""
    options: ModelOptions
    """The recipe's model section."""
    tokens: int = 0
    """How many tokens the run's tokenizer has, if it has new ones."""


def load(
    source: BaseSource, mode: Precision, adapter: AnyAdapter, *, is_wide: bool = True
) -> PreTrainedModel:
    """Load the base as the run did, quantised if it was, and widen everything else to float32.

    The rows of new tokens are anything: they belong to the adapter.

    Raises:
        InvalidError: it was quantised, and this machine does not support that.

    """
    quantised = adapter.quantised
    if quantised is not None and (reason := quantised.unsupported_reason(hardware.detect())):
        raise InvalidError(
            f"This adapter was trained on its base in {quantised.title}, which {reason}.",
            hint="Install what is missing, or do this on the machine it was trained on.",
        )
    name, code, config = source.name, source.code, load_config(source)
    formats = weight_formats.choose_formats(name, config, mode, adapter, code)
    model = loader.load_model(name, config, formats.main, quantised, code, formats.own)
    new_tokens.resize(model, source.tokens)
    if is_wide:
        _cast_to_float32(model)
    return model


def load_head_config(folder: Path) -> PreTrainedConfig:
    """Read the config of a model that writes nothing, saved next to its weights or adapter."""
    return loader.load_config(str(folder), kinds=_READING_KINDS, is_result=True)


def load_original(source: BaseSource) -> PreTrainedModel:
    """Load the base as it was saved, in float32, with what the run changed of it."""
    model = loader.load_model(source.name, load_config(source), "float32", code=source.code)
    new_tokens.resize(model, source.tokens)
    return model


def load_config(source: BaseSource) -> PreTrainedConfig:
    """Read the config of the base, changed as the run changed it."""
    if source.head is not None:
        return load_head_config(source.head)
    kinds = _READING_KINDS if source.gives_vectors else WRITING_KINDS
    config = loader.load_config(source.name, source.code, kinds=kinds)
    positions.stretch(config, source.options.rope_type, source.options.rope_factor)
    if source.gives_vectors:
        heads.attach(config, heads.VECTORS)
    return config


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
