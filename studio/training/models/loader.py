"""Loading a model in the number format a mode asks for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import torch
from peft import LoraConfig
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from studio.errors import InvalidError, TrainingError
from studio.recipe.adapters import FullFineTune, Lora
from studio.recipe.float_formats import DType
from studio.recipe.precision import Precision
from studio.recipe.quantised import Quantised
from studio.training.models import quantised_weights, remote_code
from studio.weights import architectures, config_limits, family_limits
from studio.weights.model_kinds import CAUSAL_MODEL_HINT, KIND_DESCRIPTIONS


def load_config(name: str, code: str = "") -> PreTrainedConfig:
    """Read what a folder or a hub model says of itself.

    `code` is the hash of the code in its folder that was allowed to run; nothing else ever is.
    """
    _refuse_missing_folder(name)
    _refuse_unsafe_config(name)
    trusted = remote_code.is_allowed(name, code)
    config = AutoConfig.from_pretrained(name, trust_remote_code=trusted)
    # What a config names here may be code of a stranger's on the hub, to be fetched and run.
    config._attn_implementation = None  # noqa: SLF001 -- upstream has no other word
    config._experts_implementation = None  # noqa: SLF001 -- upstream has no other word
    if trusted:
        remote_code.register_model_class(name, config)
    if hasattr(config, "rescale_every"):
        # RWKV divides weights before evaluating, would save them so, and divide again on loading.
        config.rescale_every = 0
    return config


def choose_weight_format(native: DType, mode: Precision, adapter: Lora | FullFineTune) -> DType:
    """Return the format to load weights in, or of quantised weights what is not quantised.

    `native` is the one most weights are saved in. Where nothing is cast on the fly, the weights'
    format is the one computed in: the mode's own.
    """
    if adapter.quantised is not None:
        return mode.compute
    if isinstance(adapter, FullFineTune) or mode.autocast is None:
        return mode.weights
    wanted = native if adapter.base_dtype == "native" else adapter.base_dtype
    return next((dtype for dtype in get_args(DType) if dtype == wanted), mode.weights)


def load_model(
    name: str,
    config: PreTrainedConfig,
    weights: DType,
    row: Quantised | None = None,
    code: str = "",
    own: Mapping[str, DType] = MappingProxyType({}),
) -> PreTrainedModel:
    """Load a folder or a hub model with weights in a format; of its code only what is allowed.

    `own` names weights of the model that are loaded in another format.
    """
    with _loading_formats(own):
        model, told = AutoModelForCausalLM.from_pretrained(
            name,
            config=config,
            output_loading_info=True,
            quantization_config=None
            if row is None
            else quantised_weights.bitsandbytes_config(row, weights),
            dtype=getattr(torch, weights),
            attn_implementation=attention_implementation(config),
            use_safetensors=True,
            trust_remote_code=remote_code.is_allowed(name, code),
        )
    _refuse_missing_weights(sorted(told["missing_keys"]))
    quantised_weights.disable_cpu_packing(model)
    loaded: PreTrainedModel = model
    return loaded


def _refuse_missing_weights(names: Sequence[str]) -> None:
    """Refuse files that lack weights: upstream would draw those at random, and only warn."""
    if names:
        raise TrainingError(
            "corrupt_weights",
            f"The base model's files lack {len(names):,} of its weights, first {names[0]}.",
            hint="Get the model again: a file may be missing, or of another model.",
        )


def set_formats(model: PreTrainedModel, own: Mapping[str, DType]) -> None:
    """Make weights the format that is named for them. Of an empty model nothing is rounded."""
    for name, weight in model.named_parameters(remove_duplicate=False):
        if name in own:
            weight.data = weight.data.to(getattr(torch, own[name]))


@contextmanager
def _loading_formats(own: Mapping[str, DType]) -> Iterator[None]:
    """Have upstream load some weights in formats of their own.

    It casts each to the format that the still empty model has it in
    (`core_model_loading.convert_and_load_state_dict_in_model`), and asks the empty model for its
    parts in float32 just before: that is the moment to set those formats.
    """
    ask = PreTrainedModel._get_dtype_plan  # noqa: SLF001 -- no public name

    def plan(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.dtype]:
        set_formats(model, own)
        answer: dict[str, torch.dtype] = ask(model, dtype)
        return answer

    PreTrainedModel._get_dtype_plan = plan if own else ask  # noqa: SLF001 -- no public name
    try:
        yield
    finally:
        PreTrainedModel._get_dtype_plan = ask  # noqa: SLF001 -- no public name


def kept_in_float32(config: PreTrainedConfig, weights: DType) -> tuple[str, ...]:
    """Return the parts that a family keeps in float32 where the others are loaded in 16 bits."""
    family = _model_class(config)
    # Asked of the class: it reads no more than two lists, and the model is yet to be loaded.
    kept = family._get_dtype_plan(family, getattr(torch, weights))  # noqa: SLF001 -- no public name
    return tuple(sorted(kept))


def matches_part(name: str, part: str) -> bool:
    """Whether upstream means this weight by a part of its name; an adapter has put a word in."""
    return bool(re.search(part.replace("*", ".*"), name.replace(".base_layer", "")))


def adapter_config(adapter: Lora | FullFineTune, family: str) -> LoraConfig | None:
    """Return peft's name for the adapter; None trains every weight."""
    if isinstance(adapter, FullFineTune):
        return None
    return LoraConfig(
        task_type="CAUSAL_LM",
        exclude_modules=[*family_limits.NO_ADAPTER_LAYERS.get(family, ())] or None,
        **adapter.model_dump(exclude={"kind", "base_dtype"}),
    )


@contextmanager
def keep_trained_float32(model: nn.Module) -> Iterator[None]:
    """Make what is trained beside a frozen model float32, and keep it from what upstream does.

    TRL rounds the adapter of a quantised model to bfloat16.
    """
    cast_trained_to_float32(model)
    wide = [(one, one.data) for one in model.parameters() if one.requires_grad]
    yield
    for parameter, data in wide:
        parameter.data = data.to(parameter.device)


def cast_trained_to_float32(model: nn.Module) -> None:
    """Train beside a frozen model in float32 alone, also what an adapter has copied from it."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _refuse_missing_folder(name: str) -> None:
    path = Path(name)
    if path.is_absolute() and not path.is_dir():
        raise TrainingError(
            "model_not_found",
            "The base model's folder is gone.",
            hint="Choose another base model.",
        )


def _refuse_unsafe_config(name: str) -> None:
    """Look at a config before it is made: one of a billion layers never would be."""
    said, _rest = PreTrainedConfig.get_config_dict(name)
    try:
        config_limits.check(said)
    except InvalidError as error:
        raise TrainingError("absurd_config", error.message, hint=error.hint) from error
    kind = architectures.kind_of(said)
    if kind is not None and kind != "causal":
        raise TrainingError(
            "unsupported_architecture", KIND_DESCRIPTIONS[kind], hint=CAUSAL_MODEL_HINT
        )


def attention_implementation(config: PreTrainedConfig) -> str:
    """Return the fastest attention every machine has; families without it name their own."""
    return "sdpa" if _model_class(config)._supports_sdpa else "eager"  # noqa: SLF001 -- upstream has no other word


def _model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    try:
        family: type[PreTrainedModel] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError as error:
        raise TrainingError(
            "unsupported_architecture",
            f"{config.model_type} models do not write text, or not in a way that can be trained.",
            hint="Choose a causal language model.",
        ) from error
    return family
