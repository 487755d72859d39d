"""Models loaded for inference: one base, those that endpoints pin, and the adapters on each."""

import gc
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from pydantic import Field, TypeAdapter
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import UnavailableError
from studio.hardware import free_memory
from studio.protocols.inference_service import GenerationRequest
from studio.recipe.adapters import AnyAdapter, Lora
from studio.recipe.images import ImageOptions
from studio.recipe.model_options import ModelOptions
from studio.runner.inference.decoding import MAX_PADDED_TOKENS
from studio.runner.inference.mixed_adapters import BASE, answering, can_mix
from studio.training import served_models
from studio.training.checkpoints import trainer_state
from studio.training.models import loader, lora_variants, processors, vision_parts
from studio.training.models.processors import ImageReader
from studio.weights import image_text, model_config, model_facts
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
    readers: dict[tuple[str, int | None], ImageReader] = field(default_factory=dict)
    """What turns images into inputs, by the folder that says how, and the most pixels."""
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
            self.tokenizers[folder] = served_models.load_tokenizer(request)
        return self.tokenizers[folder]

    def reader_for(self, request: GenerationRequest) -> ImageReader:
        """Return what turns images into inputs, as when a request's model was trained."""
        folder = request.adapter or request.model
        if not image_text.read_image_processor(Path(folder)):
            folder = request.model
        max_pixels: int | None = request.image_options.get("max_pixels")
        key = (folder, max_pixels)
        if key not in self.readers:
            tokenizer = self.tokenizer_for(request)
            config = self.plain.config
            self.readers[key] = processors.load(folder, config, tokenizer, max_pixels, offline=True)
        return self.readers[key]

    def activate(self, request: GenerationRequest, others: Collection[str] = ()) -> str:
        """Activate the adapter of a request, loading it if needed, and return its name in peft.

        The base has none: BASE. The adapters `others` are not dropped.
        """
        if not served_models.has_adapter(request):
            return BASE
        folder, weights = request.adapter, request.weights
        key = (folder, weights, _weights_mtime(weights or folder))
        if key not in self.adapters:
            self._count += 1
            with served_models.explaining_damage():
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
        has_adapter = served_models.has_adapter(request)
        if adapters and has_adapter and not self._has_kind(_peft_type(request)):
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
            served_models.verify_weights(Path(weights))
        self._add_adapter(request, name)
        try:
            if request.adapter:
                renamed = served_models.renamed_weights(self.plain)
                self.model.load_adapter(request.adapter, name, key_mapping=renamed)
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
            return served_models.saved_adapter_config(request.adapter)
        if request.image_options:
            options = ImageOptions.model_validate(request.image_options)
            vision_parts.freeze(self.plain, options)
        adapter = _ADAPTER.validate_python(request.lora)
        texts = served_models.changed_options(request).new_token_texts
        tokens = served_models.load_tokenizer(request).convert_tokens_to_ids([*texts])
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
    """Holds the base that was requested last, those that endpoints pin, and their adapters.

    It loads no model that needs more than `budget` bytes; 0 sets no limit.
    """

    def __init__(self, budget: int = 0) -> None:
        self._bases: list[LoadedBase] = []
        self._budget = budget
        self._pins: dict[str, BaseKey] = {}
        """By endpoint, the base that stays loaded for it."""

    @property
    def has_pins(self) -> bool:
        return bool(self._pins)

    def pin(self, request: GenerationRequest) -> None:
        """Keep the base of a request loaded for the endpoint that it names, if any."""
        if request.pins:
            self._pins[request.pins] = base_key(request)

    def unpin(self, name: str) -> None:
        self._pins.pop(name, None)

    def is_loaded(self, request: GenerationRequest) -> bool:
        """Whether a request needs no other base than those in memory."""
        return self._find(base_key(request)) is not None

    def _find(self, key: BaseKey) -> LoadedBase | None:
        return next((base for base in self._bases if base.key == key), None)

    @contextmanager
    def model_for(
        self, request: GenerationRequest
    ) -> Iterator[tuple[PreTrainedModel, PreTrainedTokenizerBase]]:
        """Yield a model ready to answer a request, and the tokenizer it was trained with."""
        base = self.base_for(request)
        adapter = base.activate(request)
        with answering(base.model, [adapter]):
            yield base.model, base.tokenizer_for(request)

    def reader_for(self, request: GenerationRequest) -> ImageReader:
        """Return what turns images into inputs of a request's model."""
        return self.base_for(request).reader_for(request)

    def base_for(self, request: GenerationRequest) -> LoadedBase:
        """Return the base that a request needs, in place of any other that is not pinned.

        Raises:
            UnavailableError: It does not fit beside those that are pinned, or what trains.

        """
        key = base_key(request)
        base = self._find(key)
        if base is None:
            self._make_room(request)
            base = LoadedBase(key, served_models.load_base_model(request))
            self._bases.append(base)
        self.pin(request)
        return base

    def _make_room(self, request: GenerationRequest) -> None:
        """Unload the bases that are not pinned: there may not be enough memory for two."""
        self._pins.pop(request.pins, None)  # Its files may have changed.
        pinned = set(self._pins.values())
        self._bases = [base for base in self._bases if base.key in pinned]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self._budget:
            held = sum(base.model.get_memory_footprint() for base in self._bases)
            _require_fits(request, max(0, self._budget - held))
        if self._bases:
            _require_free(request, sorted(self._pins))


def _require_free(request: GenerationRequest, names: Sequence[str]) -> None:
    """Refuse a model that does not fit beside those that endpoints keep loaded.

    Raises:
        UnavailableError: It does not, or nothing says how large it is.

    """
    is_gpu = torch.cuda.is_available()
    free = torch.cuda.mem_get_info()[0] if is_gpu else free_memory()
    needed = _needed_bytes(request)
    if 0 < needed <= free:
        return
    size = f"needs {needed / 1e9:,.1f} GB more" if needed else "is of unknown size"
    raise UnavailableError(
        f"The endpoint {' and '.join(names)} keeps its model loaded, and this one {size}: "
        f"{free / 1e9:,.1f} GB are free.",
        hint="Stop the endpoint on the Serve page, or ask its model.",
    )


def _needed_bytes(request: GenerationRequest) -> int:
    """Return how much memory a model needs to answer; 0 if nothing says that."""
    folder = Path(request.model)
    facts = model_facts.read(folder) if folder.is_absolute() else ModelFacts()
    shape = facts.shape or model_config.UNKNOWN_SHAPE
    text = MAX_PADDED_TOKENS * 2 * shape.layers * shape.key_width
    return _LOADED_BYTES * (facts.parameters + text) if facts.parameters else 0


def _require_fits(request: GenerationRequest, budget: int) -> None:
    """Refuse a model that does not fit beside what trains, with the answers decoded at a time.

    Raises:
        UnavailableError: It does not, or nothing says how large it is.

    """
    needed = _needed_bytes(request)
    if not needed:
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


def base_key(request: GenerationRequest) -> BaseKey:
    """Return what is equal for requests that the same loaded base answers."""
    weights = served_models.base_weights(request)
    return BaseKey(
        request.model,
        weights,
        _weights_mtime(weights or request.model),
        served_models.head_folder(request),
        bool(request.pooling),
        served_models.changed_options(request),
        served_models.base_formats(request),
    )


def _peft_type(request: GenerationRequest) -> str:
    """Return peft's name of the kind of adapter that a request needs."""
    if request.adapter:
        with served_models.explaining_damage():
            return str(PeftConfig.from_pretrained(request.adapter).peft_type.value)
    return str(request.lora.get("kind", "lora")).upper()


def _weights_mtime(name: str) -> int:
    """Return when the weights in a folder were written; 0 for a model name on the hub."""
    files = Path(name).glob("*.safetensors") if Path(name).is_absolute() else ()
    return max((file.stat().st_mtime_ns for file in files), default=0)
