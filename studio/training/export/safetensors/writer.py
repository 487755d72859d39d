"""Write a model, or an adapter alone, as safetensors that Transformers and PEFT load."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from studio.recipe.precision import DType
from studio.training import sentence_files
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export import dtype_conversion
from studio.training.export.dtype_conversion import ShardLayout
from studio.training.export.exporter import Exporter
from studio.training.models import processors
from studio.weights import safetensors_headers

ADAPTER, ADAPTER_CONFIG = "adapter_model", "adapter_config.json"
"""peft's file names."""


class SafetensorsWriter:
    """Writes whole models and adapters in one of torch's number formats."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._spec, self._source = exporter.spec, exporter.source
        name = exporter.spec.number_format.torch_name
        assert name is not None  # noqa: S101 -- as the table of formats says
        self._name: DType = name
        self._dtype: torch.dtype = getattr(torch, name)

    def refuse(self) -> None:
        """Refuse nothing: every model can be written so."""

    def write(self, partial: Path, done: Callable[[float], None]) -> dict[str, float]:
        """Write the weights and everything needed to load them."""
        artifacts = self._source.run.artifacts
        self._source.tokenizer.save_pretrained(partial)
        processors.copy_files(artifacts, partial)
        recipe = self._source.recipe
        if recipe.vectors:
            config = self._exporter.load_config(artifacts)
            sentence_files.write(partial, recipe.vectors, config, recipe.data.max_length)
        if self._spec.kind == "adapter":
            return self._write_adapter(partial, done).metrics()
        folder = self._exporter.model_folder
        trained = (
            safetensors_headers.weight_files(self._exporter.trained_folder)
            if self._spec.kind == "merged_original"
            else []
        )
        _write_config(folder, partial, self._name)
        keep = dtype_conversion.float32_filter(self._exporter.load_config(folder), self._dtype)
        files = safetensors_headers.weight_files(folder)
        return dtype_conversion.convert_files(
            files, ShardLayout(partial), self._dtype, keep, done, trained
        ).metrics()

    def load(self, partial: Path) -> PreTrainedModel:
        """Load the exported model from its files, computing in its own format."""
        if self._spec.kind == "adapter":
            return PeftModel.from_pretrained(self._exporter.load_base(), partial)
        return self._exporter.load(partial, self._name)

    def verify(
        self, partial: Path, before: Perplexity | None, after: Perplexity | None
    ) -> dict[str, Any]:
        """Find nothing more: the loss tells what the conversion did."""
        del partial, before, after
        return {}

    def _write_adapter(
        self, partial: Path, done: Callable[[float], None]
    ) -> dtype_conversion.ConversionStats:
        adapter = self._source.run.artifacts
        config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        # Runs of older versions name a local folder here.
        _write_json(
            partial / ADAPTER_CONFIG, config | {"base_model_name_or_path": self._source.base}
        )
        if (adapter / "config.json").is_file():
            shutil.copyfile(adapter / "config.json", partial / "config.json")
        _copy_generation(adapter, partial)
        files = [adapter / f"{ADAPTER}.safetensors"]
        # peft widens adapters on loading, so no tensor needs to stay in float32.
        return dtype_conversion.convert_files(
            files, ShardLayout(partial, ADAPTER), self._dtype, lambda _name: False, done
        )


def _write_config(source: Path, partial: Path, dtype: DType) -> None:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _write_json(partial / "config.json", _with_dtype(config, dtype) | {"dtype": dtype})
    _copy_generation(source, partial)


def _copy_generation(source: Path, partial: Path) -> None:
    generation = source / "generation_config.json"
    if generation.is_file():
        shutil.copyfile(generation, partial / generation.name)


def _with_dtype(config: dict[str, Any], dtype: DType) -> dict[str, Any]:
    """Replace the format in a config wherever it occurs; composite models have it twice."""
    return {key: _dtype_or_value(key, value, dtype) for key, value in config.items()}


def _dtype_or_value(key: str, value: object, dtype: DType) -> object:
    if isinstance(value, dict):
        return _with_dtype(value, dtype)
    return dtype if key in {"dtype", "torch_dtype"} else value


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
