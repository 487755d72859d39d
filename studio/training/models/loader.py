"""Load a model in the number format a precision mode asks for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import torch
from peft import IA3Config, LoraConfig, OFTConfig, PeftConfig, PeftModel
from torch import nn
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from studio.errors import InvalidError, TrainingError
from studio.recipe.adapters import AnyAdapter, FullFineTune, Ia3, Lora, Oft
from studio.recipe.attention import ATTENTIONS, AttentionName
from studio.recipe.fields import own_fields
from studio.recipe.precision import DType, Precision, Quantised
from studio.training.models import (
    adapter_targets,
    heads,
    quantised_weights,
    tokenizers,
    trained_weights,
    vision_parts,
)
from studio.weights import architectures, family_limits, model_config
from studio.weights.architectures import KIND_DESCRIPTIONS, ModelKind


def load_config(
    name: str,
    code: str = "",
    kinds: frozenset[ModelKind] = frozenset({"causal"}),
    *,
    is_result: bool = False,
) -> PreTrainedConfig:
    """Read the config of a folder or a hub model of one of these kinds.

    `code` is the hash of the code in its folder that is trusted to run; no other code ever runs.
    With `is_result`, the model is what a run made of it, even if that gives vectors.
    """
    _refuse_missing_folder(name)
    _refuse_unsafe_config(name, kinds)
    trusted = tokenizers.is_allowed(name, code)
    config = AutoConfig.from_pretrained(name, trust_remote_code=trusted)
    # A config may name code on the hub here, which would be downloaded and run.
    config._attn_implementation = None  # noqa: SLF001 -- upstream has no other word
    config._experts_implementation = None  # noqa: SLF001 -- upstream has no other word
    if not is_result:
        heads.forget_vectors(config)
    if trusted:
        tokenizers.register_model_class(name, config)
    if hasattr(config, "rescale_every"):
        # RWKV divides its weights before evaluating, would save them so, and divide again on
        # loading.
        config.rescale_every = 0
    return config


def choose_weight_format(native: DType, mode: Precision, adapter: AnyAdapter) -> DType:
    """Return the format to load weights in; for a quantised model, that of its other weights.

    `native` is the format most weights are saved in. Without autocast, weights are loaded in the
    mode's own format, which is the one it computes in.
    """
    if adapter.quantised is not None:
        return mode.compute
    if isinstance(adapter, FullFineTune) or mode.autocast is None:
        return mode.weights
    base_dtype = native if adapter.base_dtype == "native" else adapter.base_dtype
    return next((dtype for dtype in get_args(DType) if dtype == base_dtype), mode.weights)


def load_model(
    name: str,
    config: PreTrainedConfig,
    weights: DType,
    row: Quantised | None = None,
    code: str = "",
    own: Mapping[str, DType] = MappingProxyType({}),
) -> PreTrainedModel:
    """Load a folder or a hub model with weights in a given format; run only trusted code.

    `own` names weights that are loaded in other formats.
    """
    with _loading_formats(own):
        model, loading_info = heads.auto_class(config).from_pretrained(
            name,
            config=config,
            output_loading_info=True,
            quantization_config=None
            if row is None
            else quantised_weights.bitsandbytes_config(row, weights, heads.part_names(config)),
            dtype=getattr(torch, weights),
            attn_implementation=attention_implementation(config),
            use_safetensors=True,
            trust_remote_code=tokenizers.is_allowed(name, code),
            # The head of another task has another number of scores, and is replaced.
            ignore_mismatched_sizes=heads.is_attached(config),
            **heads.build_options(config),
        )
    misfits = {key for key, *_shapes in loading_info["mismatched_keys"]}
    missing = {*loading_info["missing_keys"], *misfits}
    _refuse_missing_weights(sorted(key for key in missing if not heads.is_part(key, config)))
    heads.note_missing(model, missing)
    quantised_weights.disable_cpu_packing(model)
    if heads.is_attached(config):
        heads.compute_in_float32(model)
    loaded: PreTrainedModel = model
    return loaded


def _refuse_missing_weights(names: Sequence[str]) -> None:
    """Refuse files that lack weights: upstream would initialise those at random and only warn."""
    if names:
        raise TrainingError(
            "corrupt_weights",
            f"The base model's files lack {len(names):,} of its weights, first {names[0]}.",
            hint="Download the model again: a file may be missing or belong to another model.",
        )


def set_formats(model: PreTrainedModel, own: Mapping[str, DType]) -> None:
    """Cast weights to the format named for them. An empty model is cast without rounding."""
    for name, weight in model.named_parameters(remove_duplicate=False):
        if name in own:
            weight.data = weight.data.to(getattr(torch, own[name]))


@contextmanager
def _loading_formats(own: Mapping[str, DType]) -> Iterator[None]:
    """Make upstream load some weights in other formats.

    It casts each weight to its format in the still empty model
    (`core_model_loading.convert_and_load_state_dict_in_model`), and asks the empty model for its
    float32 parts just before: that is the moment to set the formats.
    """
    original_plan = PreTrainedModel._get_dtype_plan  # noqa: SLF001 -- no public name

    def plan(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.dtype]:
        set_formats(model, own)
        dtype_plan: dict[str, torch.dtype] = original_plan(model, dtype)
        return dtype_plan

    PreTrainedModel._get_dtype_plan = plan if own else original_plan  # noqa: SLF001 -- no public name
    try:
        yield
    finally:
        PreTrainedModel._get_dtype_plan = original_plan  # noqa: SLF001 -- no public name


def kept_in_float32(config: PreTrainedConfig, weights: DType) -> tuple[str, ...]:
    """Return the parts that are kept in float32 when the rest is loaded in 16 bits.

    The family decides that, except for a head, which always is.
    """
    family = heads.model_class(config)
    # Called on the class: the method reads only two lists, and no model is loaded yet.
    dtype_plan = family._get_dtype_plan(family, getattr(torch, weights))  # noqa: SLF001 -- no public name
    return tuple(sorted({*dtype_plan, *heads.part_names(config)}))


def matches_part(name: str, part: str) -> bool:
    """Whether a part name matches a weight; ignores the `.base_layer` that adapters insert."""
    return bool(re.search(part.replace("*", ".*"), name.replace(".base_layer", "")))


def adapter_config(
    adapter: AnyAdapter, model: PreTrainedModel | PeftModel, tokens: Sequence[int] = ()
) -> PeftConfig | None:
    """Return peft's config for an adapter of this model; None means full fine-tuning.

    `tokens` are new tokens, which are trained, too.

    Raises:
        TrainingError: the model has none of the layers that the adapter is for, or they are of a
            kind or size that it does not support.

    """
    if isinstance(adapter, FullFineTune):
        return None
    common: dict[str, Any] = {
        "task_type": heads.task_type(model.config),
        "exclude_modules": _without_adapter(model) or None,
        **_with_head(model, trained_weights.peft_extras(model, adapter, tokens)),
    }
    match adapter:
        case Lora():
            return LoraConfig(
                use_dora=adapter.lora_variant.trains_magnitudes,
                **adapter.model_dump(exclude={"kind", "target_modules", *own_fields(Lora)}),
                **adapter_targets.peft_targets(model, adapter.targets),
                **common,
            )
        case Oft(oft_block_size=size):
            adapter_targets.refuse_unrotatable(model, adapter.targets, size)
            targets = adapter_targets.peft_targets(model, adapter.targets)
            return OFTConfig(oft_block_size=size, **targets, **common)
        case Ia3():
            return IA3Config(**adapter_targets.scaling_targets(model, adapter.targets), **common)


def _without_adapter(model: PreTrainedModel | PeftModel) -> list[str] | str:
    """Return the modules that get no adapter: peft leaves out the scores of a text by itself."""
    config = model.config
    if frozen := vision_parts.frozen_modules(model):
        return rf"(?:.*\.)?(?:{'|'.join(frozen)})"
    head = heads.part_names(config) if heads.scores_tokens(config) else ()
    return [*family_limits.NO_ADAPTER_LAYERS.get(config.model_type, ()), *head]


def _with_head(model: PreTrainedModel | PeftModel, extras: dict[str, Any]) -> dict[str, Any]:
    """Also train the parts of a head that peft does not know: it adds the output layer itself."""
    parts = heads.part_names(model.config)[:-1]
    return extras | {"modules_to_save": [*(extras.get("modules_to_save") or ()), *parts] or None}


@contextmanager
def keep_trained_float32(model: nn.Module) -> Iterator[None]:
    """Cast trained weights of a model with an adapter to float32, and undo upstream's rounding.

    TRL rounds the adapter of a quantised model to bfloat16.
    """
    cast_trained_to_float32(model)
    float32_weights = [
        (weight, weight.data) for weight in model.parameters() if weight.requires_grad
    ]
    yield
    for parameter, data in float32_weights:
        parameter.data = data.to(parameter.device)


def cast_trained_to_float32(model: nn.Module) -> None:
    """Cast all trained weights to float32, including those an adapter copied from the model."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _refuse_missing_folder(name: str) -> None:
    path = Path(name)
    if path.is_absolute() and not path.is_dir():
        raise TrainingError(
            "model_not_found",
            "The base model's folder no longer exists.",
            hint="Choose another base model.",
        )


def _refuse_unsafe_config(name: str, kinds: frozenset[ModelKind]) -> None:
    """Check a config before building the model: an absurdly large one would never finish."""
    values, _rest = PreTrainedConfig.get_config_dict(name)
    try:
        model_config.check(values)
    except InvalidError as error:
        raise TrainingError("absurd_config", error.message, hint=error.hint) from error
    kind = architectures.kind_of(values)
    if kind is not None and kind not in kinds:
        raise TrainingError(
            "unsupported_architecture",
            KIND_DESCRIPTIONS[kind],
            hint=architectures.model_hint(kind, kinds),
        )


def choose_attention(config: PreTrainedConfig, name: AttentionName) -> None:
    """Make models of this config compute attention in a chosen way.

    Raises:
        TrainingError: the family does not support it.

    """
    if name == "automatic":
        return
    family = heads.model_class(config)
    flags = {"sdpa": family._supports_sdpa, "flash_attention_2": family._supports_flash_attn}  # noqa: SLF001 -- upstream has no other word
    if not flags.get(name, True):
        raise TrainingError(
            "conflict",
            f"{config.model_type} models do not support {ATTENTIONS[name].title}.",
            hint="Choose automatic attention.",
        )
    config._attn_implementation = name  # noqa: SLF001 -- upstream has no other word


def refuse_checkpointing(config: PreTrainedConfig) -> None:
    """Refuse to compute activations twice where models of this config cannot.

    Raises:
        TrainingError: the family does not support it.

    """
    if not heads.model_class(config).supports_gradient_checkpointing:
        raise TrainingError(
            "conflict",
            f"{config.model_type} models do not support activation checkpointing.",
            hint="Turn off activation checkpointing.",
        )


def attention_implementation(config: PreTrainedConfig) -> str:
    """Return what was chosen, or SDPA, the fastest attention every machine supports, or eager."""
    if chosen := config._attn_implementation:  # noqa: SLF001 -- upstream has no other word
        return str(chosen)
    return "sdpa" if heads.model_class(config)._supports_sdpa else "eager"  # noqa: SLF001 -- upstream has no other word
