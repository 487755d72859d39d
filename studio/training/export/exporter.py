"""Export a run's model in a chosen format, and measure the loss of the conversion.

    the run's model in float32  ->  perplexity  ->  convert, tensor by tensor  ->  perplexity

The model before is the one that was trained, computed in float32; an adapter is loaded with its
base as in the run, rounded or quantised if it was. The model after is loaded from the written files
as any user would load them, and computes in their format. An adapter on its own is measured on the
same base both times, so that only its own rounding shows.
"""

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from studio.protocols.events import Event, PhaseChanged
from studio.protocols.run_dir import ExportDir, JobSpec, RunDir
from studio.recipe.base import Recipe
from studio.recipe.exports import ExportSpec
from studio.recipe.precision import PRECISIONS, DType
from studio.training import artifacts, job, model_card, sentence_files
from studio.training.data import chat_templates, image_messages
from studio.training.data.image_batches import ImageCollator
from studio.training.data.tokenisation import Examples
from studio.training.evaluation import perplexity
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export import dtype_conversion
from studio.training.export.dtype_conversion import ShardLayout
from studio.training.models import adapter_base, languages, loader, processors, tokenizers
from studio.weights import safetensors_headers
from studio.weights.architectures import WRITING_KINDS

ADAPTER, ADAPTER_CONFIG = "adapter_model", "adapter_config.json"
"""peft's file names."""
_MIN_SHARE_CHANGE = 0.02
"""The smallest change in the share that is reported."""

EmitEvent = Callable[[Event], None]


def export_run(
    folder: ExportDir, spec: ExportSpec, recipe: Recipe, emit: EmitEvent
) -> dict[str, float]:
    """Export a run's trained model. Return the measurements."""
    progress = ExportProgress(emit, _PHASES)
    progress.start_phase("loading")
    run = RunDir(spec.run)
    job_spec = JobSpec.read(run)
    tokenizer = tokenizers.load(str(run.artifacts))
    # Before the rows are tokenised: it tells the tokenizer how many tokens an image is.
    collator = _image_collator(run, recipe, job_spec, tokenizer)
    examples = _validation_examples(recipe, job_spec, tokenizer)
    base = model_card.base_name(recipe.base_model, job_spec.model)
    source = ExportSource(run, recipe, job_spec, base, tokenizer, examples, collator)
    exporter = Exporter(folder, spec, source, progress)
    with artifacts.atomic_folder(folder.files) as partial, _temporary_folder(folder.merged):
        before = exporter.measure_before()
        change = exporter.write_weights(partial)
        after = exporter.measure_after(partial)
        metrics = change.metrics() | _perplexity_metrics(before, after)
        metrics["bytes"] = sum(file.stat().st_size for file in partial.glob("*.safetensors"))
        text = model_card.build_export_card(
            job_spec.name,
            recipe,
            source.base,
            spec,
            metrics,
            has_chat_template=bool(tokenizer.chat_template),
        )
        (partial / "README.md").write_text(text, encoding="utf-8")
    return metrics


@dataclass(frozen=True, slots=True)
class ExportSource:
    """The run whose model is exported."""

    run: RunDir
    recipe: Recipe
    job: JobSpec
    base: str
    """The base model's public name."""
    tokenizer: PreTrainedTokenizerBase
    examples: Examples | None
    """The validation rows, or None if the dataset is gone."""
    collator: ImageCollator | None
    """Makes batches of rows with images; None for a model that reads text alone."""


@dataclass(slots=True)
class ExportProgress:
    """Reports progress over phases of equal weight, but only when it has changed noticeably."""

    emit: EmitEvent
    phases: tuple[str, ...]
    _last_share: float = field(default=-1.0)

    def start_phase(self, part: str) -> Callable[[float], None]:
        """Start a phase. Return a function to call with the share of it that is done."""
        phase_index = self.phases.index(part)

        def report(share: float) -> None:
            total_share = (phase_index + share) / len(self.phases)
            if total_share - self._last_share >= _MIN_SHARE_CHANGE:
                self._last_share = total_share
                self.emit(PhaseChanged(name=part, share=total_share))

        print(part, flush=True)  # noqa: T201 -- the export's own log
        self._last_share = -1.0
        report(0.0)
        return report


_PHASES = ("loading", "measuring before", "converting", "measuring after")


@dataclass(frozen=True, slots=True)
class Exporter:
    folder: ExportDir
    spec: ExportSpec
    source: ExportSource
    progress: ExportProgress

    def measure_before(self) -> Perplexity | None:
        """Measure the trained model; if its adapter is to be merged, merge it, too."""
        if self.spec.kind == "full":
            return self._measure(
                self._load(self.source.run.artifacts, "float32"), "measuring before"
            )
        base = self._load_base()
        model = PeftModel.from_pretrained(base, self.source.run.artifacts)
        measured = self._measure(model, "measuring before")
        if self.spec.kind != "adapter":
            self._merge(model)
        return measured

    def write_weights(self, partial: Path) -> dtype_conversion.ConversionStats:
        """Write the weights and everything needed to load them."""
        done = self.progress.start_phase("converting")
        self.source.tokenizer.save_pretrained(partial)
        processors.copy_files(self.source.run.artifacts, partial)
        recipe = self.source.recipe
        if recipe.vectors:
            config = self._load_config(self.source.run.artifacts)
            sentence_files.write(partial, recipe.vectors, config, recipe.data.max_length)
        if self.spec.kind == "adapter":
            return self._write_adapter(partial, done)
        folder = self.source.run.artifacts if self.spec.kind == "full" else self.folder.merged
        trained = (
            safetensors_headers.weight_files(self._trained_folder)
            if self.spec.kind == "merged_original"
            else []
        )
        _write_config(folder, partial, self.spec.dtype)
        keep = dtype_conversion.float32_filter(self._load_config(folder), self._dtype)
        files = safetensors_headers.weight_files(folder)
        return dtype_conversion.convert_files(
            files, ShardLayout(partial), self._dtype, keep, done, trained
        )

    def measure_after(self, partial: Path) -> Perplexity | None:
        """Measure the exported model, loaded from its files."""
        if self.spec.kind == "adapter":
            model = PeftModel.from_pretrained(self._load_base(), partial)
            return self._measure(model, "measuring after")
        return self._measure(self._load(partial, self.spec.dtype), "measuring after")

    def _measure(self, model: PreTrainedModel, part: str) -> Perplexity | None:
        done = self.progress.start_phase(part)
        if self.source.examples is None:
            return None
        measured = perplexity.measure(
            model,
            self.source.examples,
            self.source.tokenizer.pad_token_id,
            done,
            self.source.collator,
        )
        print(f"loss {measured.loss:.6g} over {measured.tokens} tokens", flush=True)  # noqa: T201 -- the export's own log
        return measured

    def _load(self, source: Path, dtype: DType) -> PreTrainedModel:
        gc.collect()  # free the previous model
        config = self._load_config(source)
        return loader.load_model(str(source), config, dtype).to(_default_device())

    def _load_config(self, folder: Path) -> PreTrainedConfig:
        if self._has_head:
            return adapter_base.load_head_config(folder)
        return loader.load_config(str(folder), kinds=WRITING_KINDS)

    @property
    def _has_head(self) -> bool:
        return not self.source.recipe.writes_text

    @property
    def _base_source(self) -> adapter_base.BaseSource:
        job, options = self.source.job, self.source.recipe.model
        return adapter_base.BaseSource(
            name=job.model,
            code=job.code,
            head=self.source.run.artifacts if self._has_head else None,
            options=options,
            tokens=len(self.source.tokenizer) if options.new_tokens else 0,
        )

    def _load_base(self) -> PreTrainedModel:
        gc.collect()  # free the previous model
        recipe = self.source.recipe
        model = adapter_base.load(self._base_source, PRECISIONS[recipe.precision], recipe.adapter)
        # Upstream has already placed a quantised model on its device and cannot move it.
        return model if self._is_quantised else model.to(_default_device())

    @property
    def _is_quantised(self) -> bool:
        return self.source.recipe.adapter.quantised is not None

    @property
    def _trained_folder(self) -> Path:
        """Where the trained weights are stored while the merged ones are written."""
        return self.folder.merged / "trained"

    def _merge(self, model: PeftModel) -> None:
        """Merge base and adapter into one model in float32; rounding happens later."""
        is_original = self.spec.kind == "merged_original"
        if self._is_quantised:
            plain = adapter_base.load_original(self._base_source)
            base = adapter_base.dequantise(model.unload(), plain)
            model = PeftModel.from_pretrained(base, self.source.run.artifacts)
        self._write_merged(model, self._trained_folder if is_original else self.folder.merged)
        if is_original:
            del model
            gc.collect()
            saved = adapter_base.load_original(self._base_source)
            saved = saved.to(_default_device())
            model = PeftModel.from_pretrained(saved, self.source.run.artifacts)
            self._write_merged(model, self.folder.merged)

    def _write_merged(self, model: PeftModel, folder: Path) -> None:
        merged = model.merge_and_unload()
        if not self._has_head:
            merged.generation_config.eos_token_id = _stop_tokens(self.source.tokenizer)
            merged.generation_config.update(**_generation(self.source, merged.config.model_type))
        merged.save_pretrained(folder, max_shard_size="2GB")

    def _write_adapter(
        self, partial: Path, done: Callable[[float], None]
    ) -> dtype_conversion.ConversionStats:
        adapter = self.source.run.artifacts
        config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        # Runs of older versions name a local folder here.
        _write_json(
            partial / ADAPTER_CONFIG, config | {"base_model_name_or_path": self.source.base}
        )
        if (adapter / "config.json").is_file():
            shutil.copyfile(adapter / "config.json", partial / "config.json")
        _copy_generation(adapter, partial)
        files = [adapter / f"{ADAPTER}.safetensors"]
        # peft widens adapters on loading, so no tensor needs to stay in float32.
        return dtype_conversion.convert_files(
            files, ShardLayout(partial, ADAPTER), self._dtype, lambda _name: False, done
        )

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.spec.dtype)
        return dtype


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _image_collator(
    run: RunDir, recipe: Recipe, spec: JobSpec, tokenizer: PreTrainedTokenizerBase
) -> ImageCollator | None:
    if recipe.images is None:
        return None
    config = loader.load_config(spec.model, spec.code, kinds=WRITING_KINDS)
    limit = recipe.images.max_pixels
    reader = processors.load(str(run.artifacts), config, tokenizer, limit, offline=True)
    return ImageCollator(tokenizer.pad_token_id, reader, image_messages.folder_of(spec.train))


def _validation_examples(
    recipe: Recipe, spec: JobSpec, tokenizer: PreTrainedTokenizerBase
) -> Examples | None:
    if not recipe.writes_text:
        return None
    try:
        examples = job.tokenise_validation(recipe, spec, tokenizer)
    except FileNotFoundError:
        print("The dataset is gone, so perplexity cannot be measured.", flush=True)  # noqa: T201 -- the export's own log
        return None
    return examples if examples.rows else None


def _generation(source: ExportSource, family: str) -> dict[str, Any]:
    """Return what a saved model's config says of how it writes."""
    spoken = languages.choose(source.tokenizer, family, source.recipe.languages)
    return source.recipe.search.arguments | spoken


def _stop_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return (
        chat_templates.load(tokenizer).stop_tokens
        if tokenizer.chat_template
        else [tokenizer.eos_token_id]
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


def _perplexity_metrics(before: Perplexity | None, after: Perplexity | None) -> dict[str, float]:
    if before is None or after is None:
        return {}
    return {
        "loss_before": before.loss,
        "loss_after": after.loss,
        "perplexity_before": before.perplexity,
        "perplexity_after": after.perplexity,
        "validation_tokens": before.tokens,
    }


def _default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
