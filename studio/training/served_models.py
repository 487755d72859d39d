"""Load a model as a request to the inference service names it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftConfig
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.recipe.adapters import Lora
from studio.recipe.model_options import ModelOptions
from studio.recipe.precision import PRECISIONS
from studio.training import exception_mapping
from studio.training.checkpoints import checksums, trainer_state
from studio.training.models import (
    adapter_base,
    loader,
    new_tokens,
    tokenizers,
    weight_formats,
)

_DAMAGED = (OSError, ValueError, KeyError, SafetensorError, RuntimeError)
"""What libraries raise about an adapter's files. A RuntimeError may have other causes."""


def has_adapter(request: GenerationRequest) -> bool:
    return bool(request.adapter or request.lora)


def base_weights(request: GenerationRequest) -> str:
    """Return the checkpoint that the weights of the base come from; an adapter's do not count."""
    return "" if has_adapter(request) else request.weights


def load_base_model(request: GenerationRequest) -> PreTrainedModel:
    """Load a model in its own format; without a GPU in float32, the fastest format on a CPU.

    If an adapter was trained on a rounded or quantised base, load the base in the same way.
    """
    on_gpu = torch.cuda.is_available()
    precision, base_dtype = base_formats(request)
    if base_dtype:
        mode = next(candidate for candidate in PRECISIONS.values() if candidate.name == precision)
        adapter = Lora.model_validate({"base_dtype": base_dtype})
        model = adapter_base.load(base_source(request), mode, adapter, is_wide=not on_gpu)
        # Upstream has already placed a quantised model on its device and cannot move it.
        return model.eval() if adapter.quantised else _move_to_device(model)
    weights = base_weights(request)
    if weights:
        verify_weights(Path(weights))
    source = base_source(request)
    config = adapter_base.load_config(source)
    dtype = weight_formats.main_format(request.model, config) if on_gpu else "float32"
    model = loader.load_model(request.model, config, dtype, code=request.code)
    new_tokens.resize(model, source.tokens)
    if weights:
        trainer_state.apply_weights(model, Path(weights))
    return _move_to_device(model)


def base_source(request: GenerationRequest) -> adapter_base.BaseSource:
    """Return where the base of a request's model is, and what its run changed of it."""
    head, options = head_folder(request), changed_options(request)
    return adapter_base.BaseSource(
        name=request.model,
        code=request.code,
        head=Path(head) if head else None,
        gives_vectors=bool(request.pooling),
        options=options,
        tokens=len(load_tokenizer(request)) if request.tokenizer or options.new_tokens else 0,
    )


def changed_options(request: GenerationRequest) -> ModelOptions:
    """Return the model section of a recipe, without what other models of a base may differ in."""
    options = ModelOptions.model_validate(request.options)
    return options.model_copy(update={"attention": "automatic"})


def load_tokenizer(request: GenerationRequest) -> PreTrainedTokenizerBase:
    """Load the tokenizer that a request's model was trained with."""
    folder = request.tokenizer or request.adapter or request.model
    return tokenizers.load(folder, request.code, offline=True)


def head_folder(request: GenerationRequest) -> str:
    """Return the folder whose config describes the head of a model that gives scores, or ""."""
    return (request.adapter or request.model) if request.gives_scores else ""


def _move_to_device(model: PreTrainedModel) -> PreTrainedModel:
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def base_formats(request: GenerationRequest) -> tuple[str, str]:
    """Return precision and format of a base that is rounded or quantised; empty for others."""
    is_changed = request.base_dtype not in ("", "native", "float32")
    return (request.precision, request.base_dtype) if is_changed else ("", "")


def verify_weights(folder: Path) -> None:
    """Refuse a checkpoint whose weights differ from what was written."""
    try:
        # Skip the other files: most of them are optimizer state.
        checksums.verify_folder(folder, trainer_state.WEIGHTS)
    except checksums.CorruptCheckpointError as error:
        raise InvalidError(
            f"{folder.name} cannot be loaded: {error}.",
            hint="Choose another checkpoint, or the run's final model.",
        ) from error


def saved_adapter_config(folder: str) -> PeftConfig:
    """Read the config of an adapter that a run has saved."""
    config = PeftConfig.from_pretrained(folder)
    config.base_model_name_or_path = None  # Upstream warns if the base has been moved.
    return config


def renamed_weights(model: PreTrainedModel) -> dict[str, str]:
    """Return how weights were named when adapters of older models of this family were saved."""
    names: dict[str, str] = getattr(model, "_checkpoint_conversion_mapping", {})
    return names


@contextmanager
def explaining_damage() -> Iterator[None]:
    """Explain what libraries raise about an adapter's files.

    Raises:
        InvalidError: They raise something.

    """
    try:
        yield
    except _DAMAGED as error:
        code = exception_mapping.explain(error).code
        if isinstance(error, RuntimeError) and code != "incompatible_checkpoint":
            raise
        raise InvalidError(
            "The adapter cannot be loaded: its files are damaged, incomplete, or for another base "
            "model.",
            hint="Choose a checkpoint of the run, or restart the run.",
        ) from error
