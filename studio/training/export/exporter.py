"""Export a run's model in a chosen format, and measure the loss of the conversion.

    the run's model in float32  ->  perplexity  ->  convert, tensor by tensor  ->  perplexity

The model before is the one that was trained, computed in float32; an adapter is loaded with its
base as in the run, rounded or quantised if it was. The model after is loaded from the written files
as any user would load them, and computes in their format. An adapter on its own is measured on the
same base both times, so that only its own rounding shows.
"""

import gc
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
from studio.protocols.run_dir import ExportDir, RunDir
from studio.recipe.adapters import FullFineTune
from studio.recipe.base import Recipe
from studio.recipe.exports import ExportSpec
from studio.recipe.precision import PRECISIONS, QUANTISED, DType
from studio.training import artifacts
from studio.training.data import chat_templates
from studio.training.evaluation import perplexity
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export import export_report, export_source, format_writer
from studio.training.export.export_source import ExportSource
from studio.training.models import adapter_base, languages, loader
from studio.weights.architectures import WRITING_KINDS

_MIN_SHARE_CHANGE = 0.02
"""The smallest change in the share that is reported."""

EmitEvent = Callable[[Event], None]


def export_run(
    folder: ExportDir, spec: ExportSpec, recipe: Recipe, emit: EmitEvent
) -> dict[str, float]:
    """Export a run's trained model. Return the measurements."""
    progress = ExportProgress(emit, _PHASES)
    progress.start_phase("loading")
    exporter = Exporter(folder, spec, export_source.read(RunDir(spec.run), recipe), progress)
    writer = format_writer.writer_class(spec.kind)(exporter)
    writer.refuse()
    with artifacts.atomic_folder(folder.files) as partial, _temporary_folder(folder.merged):
        before = exporter.measure_before()
        metrics = writer.write(partial, progress.start_phase("converting"))
        gc.collect()  # free the previous model
        after = exporter.measure(writer.load(partial), "measuring after")
        metrics |= _perplexity_metrics(before.perplexity, after.perplexity)
        metrics["bytes"] = sum(
            file.stat().st_size for file in partial.iterdir() if file.suffix in _WEIGHT_SUFFIXES
        )
        found = writer.verify(partial, before.perplexity, after.perplexity)
        answers = (before.answer, after.answer)
        export_report.write(partial, exporter.source, spec, metrics, found, answers)
    return metrics


_WEIGHT_SUFFIXES = frozenset({".safetensors", ".gguf"})


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
class Measured:
    """What a model says of the measured rows."""

    perplexity: Perplexity | None = None
    answer: str = ""
    """Its answer to the first of them; empty if it gives none."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """Loads, merges and measures the model of a run, for any format."""

    folder: ExportDir
    spec: ExportSpec
    source: ExportSource
    progress: ExportProgress

    @property
    def is_full(self) -> bool:
        """Whether the run trained the model itself, so that nothing is merged."""
        return isinstance(self.source.recipe.adapter, FullFineTune)

    @property
    def model_folder(self) -> Path:
        """Where the whole model is that is written: as trained, or merged in float32."""
        return self.source.run.artifacts if self.is_full else self.folder.merged

    def measure_before(self) -> Measured:
        """Measure the trained model; if its adapter is to be merged, merge it, too."""
        if self.is_full:
            return self.measure(self.load(self.source.run.artifacts, "float32"), "measuring before")
        base = self.load_base()
        model = PeftModel.from_pretrained(base, self.source.run.artifacts)
        measured = self.measure(model, "measuring before")
        if self.spec.kind != "adapter":
            self._merge(model)
        return measured

    def measure(self, model: PreTrainedModel, part: str) -> Measured:
        """Measure a model on the rows, and let it answer the first of them."""
        done = self.progress.start_phase(part)
        source = self.source
        if source.examples is None:
            return Measured()
        measured = perplexity.measure(
            model, source.examples, source.tokenizer.pad_token_id, done, source.collator
        )
        print(f"loss {measured.loss:.6g} over {measured.tokens} tokens", flush=True)  # noqa: T201 -- the export's own log
        return Measured(measured, source.answer(model))

    def load(self, source: Path, dtype: DType) -> PreTrainedModel:
        """Load a whole model from a folder, on the device that measures."""
        gc.collect()  # free the previous model
        config = self.load_config(source)
        return self.place(loader.load_model(str(source), config, dtype))

    def place(self, model: PreTrainedModel) -> PreTrainedModel:
        """Move a model to the device that measures."""
        return model.to(_default_device())

    @property
    def has_int8_base(self) -> bool:
        """Whether the run computed products in 8 bits, which no whole model does."""
        return self.source.recipe.adapter.quantised is QUANTISED["int8"]

    def load_config(self, folder: Path) -> PreTrainedConfig:
        """Read the config of a whole model of the run."""
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

    def load_base(self) -> PreTrainedModel:
        """Load the base model as the run did, rounded or quantised if it was."""
        gc.collect()  # free the previous model
        recipe = self.source.recipe
        model = adapter_base.load(self._base_source, PRECISIONS[recipe.precision], recipe.adapter)
        # Upstream has already placed a quantised model on its device and cannot move it.
        return model if self._is_quantised else model.to(_default_device())

    @property
    def _is_quantised(self) -> bool:
        return self.source.recipe.adapter.quantised is not None

    @property
    def trained_folder(self) -> Path:
        """Where the trained weights are stored while the merged ones are written."""
        return self.folder.merged / "trained"

    def _merge(self, model: PeftModel) -> None:
        """Merge base and adapter into one model in float32; rounding happens later."""
        is_original = self.spec.kind == "merged_original"
        if self._is_quantised:
            plain = adapter_base.load_original(self._base_source)
            base = adapter_base.dequantise(model.unload(), plain)
            model = PeftModel.from_pretrained(base, self.source.run.artifacts)
        self._write_merged(model, self.trained_folder if is_original else self.folder.merged)
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


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
