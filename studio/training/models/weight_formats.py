"""The formats a model's weights are saved in, by their names in the loaded model.

transformers loads every weight in the format named in the config (`dtype="auto"`), whatever the
files contain. This module uses the headers of the files instead.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)
from transformers.utils import cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from studio.recipe.adapters import AnyAdapter, keeps_saved_dtypes
from studio.recipe.precision import DType, Precision
from studio.training.models import heads, loader, tokenizers
from studio.weights import model_facts, safetensors_headers
from studio.weights.safetensors_headers import TensorInfo


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The formats to load a model's weights in."""

    main: DType
    """The format of all weights except those in `own`."""
    own: Mapping[str, DType] = field(default_factory=dict)
    """Formats that differ from `main`, by weight name."""
    kept: frozenset[str] = frozenset()
    """Weights in `own` that their family keeps in float32 anyway; a plan lists these separately."""

    @property
    def all_formats(self) -> set[DType]:
        return {self.main, *(dtype for name, dtype in self.own.items() if name not in self.kept)}


def download_weights(name: str) -> None:
    """Download the weights of a hub model to this machine, as loading it would."""
    if Path(name).is_absolute():
        return
    missing = "_raise_exceptions_for_missing_entries"
    if cached_file(name, safetensors_headers.WEIGHTS_FILE, **{missing: False}) is None:
        index = cached_file(name, safetensors_headers.INDEX_FILE, **{missing: False})
        if index is not None:
            get_checkpoint_shard_files(name, index)


def list_tensors(name: str) -> list[TensorInfo]:
    """Return the tensors in the files of a folder or hub model; empty without local files."""
    folder = _local_folder(name)
    return (
        []
        if folder is None
        else [
            t
            for file in safetensors_headers.weight_files(folder)
            for t in safetensors_headers.read_tensors(file)
        ]
    )


def choose_formats(
    name: str,
    config: PreTrainedConfig,
    mode: Precision,
    adapter: AnyAdapter,
    code: str = "",
) -> WeightFormats:
    """Return the formats to load a model's weights in for a run."""
    tensors = list_tensors(name)
    chosen = safetensors_headers.load_dtypes(tensors)
    counts = safetensors_headers.count_by_dtype(tensors, chosen)
    main = loader.choose_weight_format(
        next(iter(counts), _config_format(config, mode.weights)), mode, adapter
    )
    if not keeps_saved_dtypes(adapter, mode) or len(counts) < 2:  # noqa: PLR2004 -- two make a mixture
        return WeightFormats(main)
    return _formats_by_name(_make_empty_model(name, config, main, code), chosen, main)


def weight_files(name: str) -> list[Path]:
    """Return the files with the weights of a folder or hub model; none without local files."""
    folder = _local_folder(name)
    return [] if folder is None else safetensors_headers.weight_files(folder)


def main_format(name: str, config: PreTrainedConfig) -> DType:
    """Return the format most weights are saved in; without local files, the config's."""
    tensors = list_tensors(name)
    counts = safetensors_headers.count_by_dtype(tensors, safetensors_headers.load_dtypes(tensors))
    return next(iter(counts), _config_format(config, "bfloat16"))


def count_nonfinite(name: str) -> dict[str, int]:
    """Count the weights of a model's files that are NaN or infinite, by tensor."""
    folder = _local_folder(name)
    counts: dict[str, int] = {}
    for file in [] if folder is None else safetensors_headers.weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 -- it is no mapping
                count = int((~opened.get_tensor(key).isfinite()).sum())
                counts |= {key: count} if count else {}
    return counts


def measure_rounding(
    name: str, main: DType, mode: Precision, adapter: AnyAdapter
) -> dict[str, Any] | None:
    """Return what loading a model rounds, estimated on a sample as before the start, or None."""
    folder = _local_folder(name)
    if folder is None:
        return None
    cast = model_facts.read(folder).rounding_to(
        main,
        keeps_own=keeps_saved_dtypes(adapter, mode),
        is_quantised=adapter.quantised is not None,
    )
    return None if cast is None else asdict(cast)


def _local_folder(name: str) -> Path | None:
    if Path(name).is_absolute():
        return Path(name)
    cached_paths = (
        try_to_load_from_cache(name, file)
        for file in (safetensors_headers.WEIGHTS_FILE, safetensors_headers.INDEX_FILE)
    )
    return next((Path(path).parent for path in cached_paths if isinstance(path, str)), None)


def _config_format(config: PreTrainedConfig, otherwise: DType) -> DType:
    config_dtype = str(config.dtype).removeprefix("torch.")
    return next((dtype for dtype in get_args(DType) if dtype == config_dtype), otherwise)


def _make_empty_model(
    name: str, config: PreTrainedConfig, dtype: DType, code: str
) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = heads.auto_class(config).from_config(
            config,
            dtype=getattr(torch, dtype),
            trust_remote_code=tokenizers.is_allowed(name, code),
            **heads.build_options(config),
        )
    return model


def _formats_by_name(
    model: PreTrainedModel, chosen: Mapping[str, DType], main: DType
) -> WeightFormats:
    """Key formats by the names weights get in the model; ignore tensors it does not use."""
    merged: dict[str, set[DType]] = {}
    for name, target in _match_names(model, chosen):
        merged.setdefault(target, set()).add(chosen[name])
    own_formats = {name: _merge_formats(model, name, dtypes) for name, dtypes in merged.items()}
    kept_names = frozenset(name for name in own_formats if _is_kept_in_float32(model, name, main))
    return WeightFormats(
        main, {name: dtype for name, dtype in own_formats.items() if dtype != main}, kept_names
    )


def _merge_formats(model: PreTrainedModel, name: str, dtypes: AbstractSet[DType]) -> DType:
    """Return the format of a weight that is loaded from one or several tensors."""
    # Only float32 can represent the values of both 16-bit formats.
    if len(dtypes) > 1 or any(_is_kept_in_float32(model, name, dtype) for dtype in dtypes):
        return safetensors_headers.FALLBACK_DTYPE
    return next(iter(dtypes))


def _match_names(model: PreTrainedModel, names: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield each tensor of a file with the name upstream gives it in the model."""
    weights = model.state_dict()
    changes = get_model_conversion_mapping(model)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    prefix = model.base_model_prefix
    for name in sorted(names, key=dot_natural_key):
        target, _ = rename_source_key(name, renamings, converters, prefix, weights)
        if target not in weights and name in weights:
            target, _ = rename_source_key(name, [], [], prefix, weights)
        if target in weights:
            yield name, target


def _is_kept_in_float32(model: PreTrainedModel, name: str, dtype: DType) -> bool:
    """Whether the model's family keeps a weight in float32 when loaded in the given format."""
    parts = loader.kept_in_float32(model.config, dtype)
    return any(loader.matches_part(name, part) for part in parts)
