"""Models that are loaded to answer: one base at a time, and adapters that are swapped on it."""

import gc
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.recipe.adapters import Lora
from studio.recipe.precision import PRECISIONS
from studio.training.checkpoints import checksums, trainer_state
from studio.training.models import adapter_base, loader, tokenizers, weight_formats

MAX_ADAPTERS = 8
"""How many adapters stay on a base; the one that was asked for longest ago makes room."""


@dataclass(slots=True)
class LoadedBase:
    name: str
    weights: str
    """The checkpoint that its weights are from, or nothing."""
    weights_mtime: int
    """When its weights were written: a folder may hold others by now."""
    trained_beside: tuple[str, str]
    """The precision and the format that adapters learnt beside it in, where that changed it."""
    model: PreTrainedModel | PeftModel
    tokenizers: dict[str, PreTrainedTokenizerBase] = field(default_factory=dict)
    adapters: OrderedDict[tuple[str, str, int], str] = field(default_factory=OrderedDict)
    """What peft calls each, by its folder, its checkpoint and when that was written."""
    _count: int = 0

    def activate_adapter(self, folder: str, weights: str) -> None:
        """Make an adapter the one that answers, loading it if need be."""
        key = (folder, weights, _weights_mtime(weights or folder))
        if key not in self.adapters:
            self._count += 1
            self.adapters[key] = self._load_adapter(folder, f"adapter{self._count}", weights)
        self.adapters.move_to_end(key)
        self.model.set_adapter(self.adapters[key])
        while len(self.adapters) > MAX_ADAPTERS:
            _, old = self.adapters.popitem(last=False)
            self.model.delete_adapter(old)

    def _load_adapter(self, folder: str, name: str, weights: str) -> str:
        if weights:
            _verify_weights(Path(weights))
        if isinstance(self.model, PeftModel):
            self.model.load_adapter(folder, adapter_name=name)
        else:
            self.model = PeftModel.from_pretrained(self.model, folder, adapter_name=name)
        if weights:
            trainer_state.apply_weights(self.model, Path(weights), name)
        self.model.eval()
        return name


class ModelCache:
    """The base that was asked for last, and its adapters."""

    def __init__(self) -> None:
        self._base: LoadedBase | None = None

    @contextmanager
    def model_for(
        self, asked: GenerationRequest
    ) -> Iterator[tuple[PreTrainedModel, PreTrainedTokenizerBase]]:
        """Give a model that answers as it is asked to, and the tokenizer it was taught with."""
        base = self._load_base(asked)
        folder = asked.adapter or asked.model
        if folder not in base.tokenizers:
            base.tokenizers[folder] = tokenizers.load(folder, asked.code, offline=True)
        if asked.adapter:
            base.activate_adapter(asked.adapter, asked.weights)
            yield base.model, base.tokenizers[folder]
        elif isinstance(base.model, PeftModel):
            with base.model.disable_adapter():
                yield base.model, base.tokenizers[folder]
        else:
            yield base.model, base.tokenizers[folder]

    def _load_base(self, asked: GenerationRequest) -> LoadedBase:
        weights = "" if asked.adapter else asked.weights
        key = (
            asked.model,
            weights,
            _weights_mtime(weights or asked.model),
            _adapter_base_formats(asked),
        )
        base = self._base
        if (
            base is None
            or (base.name, base.weights, base.weights_mtime, base.trained_beside) != key
        ):
            self._base = base = None
            gc.collect()  # Two of them may be more than there is room for.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._base = base = LoadedBase(*key, _load_model(asked, weights))
        return base


def _load_model(asked: GenerationRequest, weights: str) -> PreTrainedModel:
    """Load a model as its file has it; without a GPU in float32, which processors are fastest in.

    A base that an adapter was trained beside rounded or quantised is made so again.
    """
    on_gpu = torch.cuda.is_available()
    precision, base_dtype = _adapter_base_formats(asked)
    if base_dtype:
        mode = next(one for one in PRECISIONS.values() if one.name == precision)
        adapter = Lora.model_validate({"base_dtype": base_dtype})
        model = adapter_base.load(asked.model, asked.code, mode, adapter, is_wide=not on_gpu)
        # Upstream has put a quantised model on its device, and moves it no more.
        return model.eval() if adapter.quantised else _move_to_device(model)
    if weights:
        _verify_weights(Path(weights))
    config = loader.load_config(asked.model, asked.code)
    dtype = weight_formats.main_format(asked.model, config) if on_gpu else "float32"
    model = loader.load_model(asked.model, config, dtype, code=asked.code)
    if weights:
        trainer_state.apply_weights(model, Path(weights))
    return _move_to_device(model)


def _move_to_device(model: PreTrainedModel) -> PreTrainedModel:
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _adapter_base_formats(asked: GenerationRequest) -> tuple[str, str]:
    is_changed = asked.base_dtype not in ("", "native", "float32")
    return (asked.precision, asked.base_dtype) if asked.adapter and is_changed else ("", "")


def _verify_weights(folder: Path) -> None:
    """Refuse a checkpoint whose weights are not as they were written."""
    try:
        # Of the rest, most of which is the optimizer's, nothing is read.
        checksums.verify_folder(folder, trainer_state.WEIGHTS)
    except checksums.CorruptCheckpointError as why:
        raise InvalidError(
            f"{folder.name} cannot be asked: {why}.",
            hint="Ask another checkpoint, or the model that the run ended with.",
        ) from why


def _weights_mtime(name: str) -> int:
    """Return when the weights of a folder were written; a name on the hub has none."""
    files = Path(name).glob("*.safetensors") if Path(name).is_absolute() else ()
    return max((file.stat().st_mtime_ns for file in files), default=0)
