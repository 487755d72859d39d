"""The layers that are quantised: which they are, how, and what they stand for."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    TorchAoConfig,
)
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from studio.errors import InvalidError
from studio.recipe.exports import EXPORT_FORMATS, ExportDType, ExportKind
from studio.recipe.precision import NF4_BLOCK_SIZE
from studio.training.models import adapter_base

_OTHERS = torch.bfloat16
_4_BIT: frozenset[ExportDType] = frozenset({"nf4", "fp4"})
_4_BIT_OUTPUTS = 32
"""bitsandbytes packs the 4-bit weights of so many outputs together on processors that multiply in
bfloat16. There, it cannot compute layers with other multiples, or with blocks that end in a row."""


def empty_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model of this config without memory for its weights."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=_OTHERS, trust_remote_code=False
        )
    return model


def choose(model: PreTrainedModel, kind: ExportKind, dtype: ExportDType) -> tuple[str, ...]:
    """Return the linear layers that are not quantised, though they are no output layer.

    Raises:
        InvalidError: no layer is left that can be quantised.

    """
    # torchao knows only layers of torch; GPT-2's are of another class.
    kinds = (nn.Linear,) if kind == "torchao" else (nn.Linear, Conv1D)
    skipped = get_keys_to_not_convert(model)
    found = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, kinds) and should_convert_module(name, skipped)
    }
    unfit = tuple(
        name for name, layer in found.items() if dtype in _4_BIT and not _fits_blocks(layer)
    )
    if len(unfit) < len(found):
        return unfit
    package = EXPORT_FORMATS[kind].packages[0]
    raise InvalidError(
        f"This model has no linear layers that {package} can quantise so: it would stay as large "
        "as it is.",
        hint="Choose another format.",
    )


def _fits_blocks(layer: nn.Module) -> bool:
    assert isinstance(layer.weight, Tensor)  # noqa: S101 -- the layer is linear
    outputs, inputs = layer.weight.shape
    if isinstance(layer, Conv1D):
        outputs, inputs = inputs, outputs
    return outputs % _4_BIT_OUTPUTS == 0 and inputs % NF4_BLOCK_SIZE == 0


def quantisation_config(
    model: PreTrainedModel, kind: ExportKind, dtype: ExportDType, unfit: tuple[str, ...]
) -> BitsAndBytesConfig | TorchAoConfig:
    """Return upstream's config of a format; layers in `unfit` stay as they are."""
    skipped = sorted({*get_keys_to_not_convert(model), *unfit}) if unfit else None
    if kind == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig  # noqa: PLC0415 -- optional dependency

        return TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=skipped)
    if dtype == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        llm_int8_skip_modules=skipped,
        bnb_4bit_quant_type=dtype,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=_OTHERS,
    )


def iter_weights(model: PreTrainedModel, plain: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight by name, as what it stands for, with the shape that it was trained in.

    `plain` is an empty model of the same config that is not quantised.
    """
    for path, layer in model.named_modules():
        # bitsandbytes stores GPT-2's layers transposed.
        is_transposed = isinstance(plain.get_submodule(path), Conv1D)
        for name, weight in layer.named_parameters(recurse=False):
            value = _stored_value(layer, weight)
            yield f"{path}.{name}", value.T if is_transposed and is_quantised(weight) else value


def _stored_value(layer: nn.Module, weight: nn.Parameter) -> Tensor:
    if hasattr(weight, "qdata"):  # one of torchao's tensors
        value: Tensor = weight.dequantize()
        return value
    return adapter_base.dequantised_value(layer, weight)


def is_quantised(weight: Tensor) -> bool:
    """Whether a weight is stored in 8 or 4 bits."""
    return hasattr(weight, "qdata") or not weight.is_floating_point()
