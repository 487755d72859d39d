"""Models loaded for inference: one base at a time, and the adapters swapped on it."""

import gc
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from pydantic import Field, TypeAdapter
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError, UnavailableError
from studio.protocols.inference_service import GenerationRequest
from studio.recipe.adapters import AnyAdapter, Lora
from studio.recipe.model_options import ModelOptions
from studio.recipe.precision import PRECISIONS
from studio.runner.inference.decoding import MAX_PADDED_TOKENS
from studio.runner.inference.mixed_adapters import BASE, answering, can_mix
from studio.training import exception_mapping
from studio.training.checkpoints import checksums, trainer_state
from studio.training.models import (
    adapter_base,
    loader,
    lora_variants,
    new_tokens,
    tokenizers,
    weight_formats,
)
from studio.weights import model_config, model_facts
from studio.weights.model_facts import ModelFacts

_ADAPTER: TypeAdapter[AnyAdapter] = TypeAdapter(Annotated[AnyAdapter, Field(discriminator="kind")])

MAX_ADAPTERS = 8
"""Adapters kept on a base; the least recently used one is dropped."""


@dataclass(frozen=True, slots=True)
class BaseKey:
    """What distinguishes one loaded base from another."""

    name: str
    weights: str
    """The checkpoint its weights come from, or ""."""
    weights_mtime: int
    """When its weights were written: the folder may hold other weights by now."""
    head: str
    """The folder that describes its head for scores, or ""."""
    gives_vectors: bool
    """Whether it is loaded without the layer that writes."""
    options: ModelOptions
    """What was changed of the base besides its formats: its positions and tokens."""
    formats: tuple[str, str]
    """Precision and format the adapters were trained with, if those changed the base; else ""."""


@dataclass(slots=True)
class LoadedBase:
    key: BaseKey
    model: PreTrainedModel | PeftModel
    tokenizers: dict[str, PreTrainedTokenizerBase] = field(default_factory=dict)
    adapters: OrderedDict[tuple[str, str, int], str] = field(default_factory=OrderedDict)
    """The peft name of each adapter, by folder, checkpoint and modification time."""
    _count: int = 0
    _mixes: dict[str, bool] = field(default_factory=dict)
    """Whether an adapter can answer together with others, by its name in peft."""

    @property
    def plain(self) -> PreTrainedModel:
        """The model itself: the same object, whichever adapters are on it."""
        model = self.model
        return model.get_base_model() if isinstance(model, PeftModel) else model

    def tokenizer_for(self, request: GenerationRequest) -> PreTrainedTokenizerBase:
        """Return the tokenizer that a request's model was trained with."""
        folder = request.tokenizer or request.adapter or request.model
        if folder not in self.tokenizers:
            self.tokenizers[folder] = _load_tokenizer(request)
        return self.tokenizers[folder]

    def activate(self, request: GenerationRequest, others: Collection[str] = ()) -> str:
        """Activate the adapter of a request, loading it if needed, and return its name in peft.

        The base has none: BASE. The adapters `others` are not dropped.
        """
        if not _has_adapter(request):
            return BASE
        folder, weights = request.adapter, request.weights
        key = (folder, weights, _weights_mtime(weights or folder))
        if key not in self.adapters:
            self._count += 1
            with _explaining_damage():
                self.adapters[key] = self._load_adapter(request, f"adapter{self._count}")
        self.adapters.move_to_end(key)
        name = self.adapters[key]
        self.model.set_adapter(name)
        unused = [key for key, old in self.adapters.items() if old not in (name, *others)]
        for old in unused[: max(0, len(self.adapters) - MAX_ADAPTERS)]:
            self.model.delete_adapter(self.adapters.pop(old))
        return name

    def activate_beside(self, request: GenerationRequest, others: Collection[str]) -> str | None:
        """Do so if a batch can have rows of this adapter and of others, else return None."""
        adapters = {*others} - {BASE}
        if adapters and _has_adapter(request) and not self._has_kind(_peft_type(request)):
            return None
        name = self.activate(request, others)
        return name if self._can_mix({name, *others}) else None

    def _can_mix(self, names: Collection[str]) -> bool:
        return len(names) == 1 or all(self._mixes_with_others(name) for name in names)

    def _mixes_with_others(self, name: str) -> bool:
        if name == BASE:
            return True
        if name not in self._mixes:
            self._mixes[name] = can_mix(self.model, name)
        return self._mixes[name]

    def _has_kind(self, kind: str) -> bool:
        return isinstance(self.model, PeftModel) and self.model.peft_type == kind

    def _load_adapter(self, request: GenerationRequest, name: str) -> str:
        weights = request.weights
        if weights:
            _verify_weights(Path(weights))
        self._add_adapter(request, name)
        try:
            if request.adapter:
                self.model.load_adapter(request.adapter, name, key_mapping=_renamed(self.plain))
            if weights:
                trainer_state.apply_weights(self.model, Path(weights), name)
        except BaseException:
            self._remove_adapter(name)
            raise
        self.model.eval()
        return name

    def _add_adapter(self, request: GenerationRequest, name: str) -> None:
        """Add an untrained adapter, in place of all others if those are of another kind.

        peft does not mix kinds on a model.
        """
        if isinstance(self.model, PeftModel) and not self._has_kind(_peft_type(request)):
            self.model = self.model.unload()
            self.adapters.clear()
        config = self._adapter_config(request)
        if isinstance(self.model, PeftModel):
            self.model.add_adapter(name, config)
        else:
            self.model = get_peft_model(self.model, config, adapter_name=name)

    def _adapter_config(self, request: GenerationRequest) -> PeftConfig:
        """Return the config of a saved adapter, or of one that the recipe describes."""
        if request.adapter:
            config = PeftConfig.from_pretrained(request.adapter)
            config.base_model_name_or_path = None  # Upstream warns if the base has been moved.
            return config
        adapter = _ADAPTER.validate_python(request.lora)
        texts = changed_options(request).new_token_texts
        tokens = _load_tokenizer(request).convert_tokens_to_ids([*texts])
        config = loader.adapter_config(adapter, self.model, tokens)
        assert config is not None  # noqa: S101 -- only for a full fine-tune
        if isinstance(adapter, Lora) and adapter.changes_base:
            config = lora_variants.plain_config(config)
        return config

    def _remove_adapter(self, name: str) -> None:
        assert isinstance(self.model, PeftModel)  # noqa: S101 -- it has this adapter
        if len(self.model.peft_config) == 1:
            self.model = self.model.unload()
        else:
            self.model.delete_adapter(name)


class ModelCache:
    """Holds the base that was requested last, and its adapters.

    It loads no model that needs more than `budget` bytes; 0 sets no limit.
    """

    def __init__(self, budget: int = 0) -> None:
        self._base: LoadedBase | None = None
        self._budget = budget

    def is_loaded(self, request: GenerationRequest) -> bool:
        """Whether a request needs no other base than the one in memory."""
        base = self._base
        return base is not None and base.key == base_key(request)

    @contextmanager
    def model_for(
        self, request: GenerationRequest
    ) -> Iterator[tuple[PreTrainedModel, PreTrainedTokenizerBase]]:
        """Yield a model ready to answer a request, and the tokenizer it was trained with."""
        base = self.base_for(request)
        adapter = base.activate(request)
        with answering(base.model, [adapter]):
            yield base.model, base.tokenizer_for(request)

    def base_for(self, request: GenerationRequest) -> LoadedBase:
        """Return the base that a request needs, in place of any other."""
        key, base = base_key(request), self._base
        if base is None or base.key != key:
            if self._budget:
                _require_fits(request, self._budget)
            self._base = base = None
            gc.collect()  # There may not be enough memory for two models.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._base = base = LoadedBase(key, load_base_model(request))
        return base


def _require_fits(request: GenerationRequest, budget: int) -> None:
    """Refuse a model that does not fit beside what trains, with the answers decoded at a time.

    Raises:
        UnavailableError: It does not, or nothing says how large it is.

    """
    folder = Path(request.model)
    facts = model_facts.read(folder) if folder.is_absolute() else ModelFacts()
    shape = facts.shape or model_config.UNKNOWN_SHAPE
    text = MAX_PADDED_TOKENS * 2 * shape.layers * shape.key_width
    needed = _LOADED_BYTES * (facts.parameters + text)
    if not facts.parameters:
        raise UnavailableError(
            "All slots are taken, and nothing says how much memory this model needs.",
            hint=_LATER,
        )
    if needed > budget:
        raise UnavailableError(
            f"All slots are taken, and this model needs {needed / 1e9:,.1f} GB of memory: "
            f"{budget / 1e9:,.1f} GB are left for it.",
            hint=_LATER,
        )


_LATER = "Try again when a slot is free."

_LOADED_BYTES = 4
"""Bytes of a weight, or of a key or value of the text that has been read: float32 on the CPU."""

_DAMAGED = (OSError, ValueError, KeyError, SafetensorError, RuntimeError)
"""What libraries raise about an adapter's files. A RuntimeError may have other causes."""


def _renamed(model: PreTrainedModel) -> dict[str, str]:
    """Return how weights were named when adapters of older models of this family were saved."""
    names: dict[str, str] = getattr(model, "_checkpoint_conversion_mapping", {})
    return names


def _has_adapter(request: GenerationRequest) -> bool:
    return bool(request.adapter or request.lora)


def _base_weights(request: GenerationRequest) -> str:
    """Return the checkpoint that the weights of the base come from; an adapter's do not count."""
    return "" if _has_adapter(request) else request.weights


def base_key(request: GenerationRequest) -> BaseKey:
    """Return what is equal for requests that the same loaded base answers."""
    weights = _base_weights(request)
    return BaseKey(
        request.model,
        weights,
        _weights_mtime(weights or request.model),
        _head_folder(request),
        bool(request.pooling),
        changed_options(request),
        base_formats(request),
    )


def _peft_type(request: GenerationRequest) -> str:
    """Return peft's name of the kind of adapter that a request needs."""
    if request.adapter:
        with _explaining_damage():
            return str(PeftConfig.from_pretrained(request.adapter).peft_type.value)
    return str(request.lora.get("kind", "lora")).upper()


@contextmanager
def _explaining_damage() -> Iterator[None]:
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
    weights = _base_weights(request)
    if weights:
        _verify_weights(Path(weights))
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
    head, options = _head_folder(request), changed_options(request)
    return adapter_base.BaseSource(
        name=request.model,
        code=request.code,
        head=Path(head) if head else None,
        gives_vectors=bool(request.pooling),
        options=options,
        tokens=len(_load_tokenizer(request)) if request.tokenizer or options.new_tokens else 0,
    )


def changed_options(request: GenerationRequest) -> ModelOptions:
    """Return the model section of a recipe, without what other models of a base may differ in."""
    options = ModelOptions.model_validate(request.options)
    return options.model_copy(update={"attention": "automatic"})


def _load_tokenizer(request: GenerationRequest) -> PreTrainedTokenizerBase:
    """Load the tokenizer that a request's model was trained with."""
    folder = request.tokenizer or request.adapter or request.model
    return tokenizers.load(folder, request.code, offline=True)


def _head_folder(request: GenerationRequest) -> str:
    """Return the folder whose config describes the head of a model that gives scores, or ""."""
    return (request.adapter or request.model) if request.gives_scores else ""


def _move_to_device(model: PreTrainedModel) -> PreTrainedModel:
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def base_formats(request: GenerationRequest) -> tuple[str, str]:
    """Return precision and format of a base that is rounded or quantised; empty for others."""
    is_changed = request.base_dtype not in ("", "native", "float32")
    return (request.precision, request.base_dtype) if is_changed else ("", "")


def _verify_weights(folder: Path) -> None:
    """Refuse a checkpoint whose weights differ from what was written."""
    try:
        # Skip the other files: most of them are optimizer state.
        checksums.verify_folder(folder, trainer_state.WEIGHTS)
    except checksums.CorruptCheckpointError as error:
        raise InvalidError(
            f"{folder.name} cannot be loaded: {error}.",
            hint="Choose another checkpoint, or the run's final model.",
        ) from error


def _weights_mtime(name: str) -> int:
    """Return when the weights in a folder were written; 0 for a model name on the hub."""
    files = Path(name).glob("*.safetensors") if Path(name).is_absolute() else ()
    return max((file.stat().st_mtime_ns for file in files), default=0)
