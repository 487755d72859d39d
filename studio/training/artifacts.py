"""Write a run's artifacts: to a temporary folder, which then replaces the target."""

import copy
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedConfig, PreTrainedModel

from studio.protocols.events import Sampled
from studio.training.job import TrainingJob
from studio.training.models import heads, lora_variants

LAST_GOOD = "last-good"
"""Where a failed run keeps the weights from before its loss became NaN."""


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to; it replaces the target only if no error occurs."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


def write_model(folder: Path, model: PreTrainedModel | PeftModel, job: TrainingJob) -> None:
    """Write the weights, the tokenizer, and generation settings with the right stop tokens."""
    if isinstance(model, PeftModel):
        # peft's own card would contain local paths; the studio writes its own.
        set_base_name(model, job.base)
        start = job.run_dir.adapter_start
        with (
            lora_variants.plain_adapter(model, start)
            if job.changes_base
            else nullcontext() as state
        ):
            model.save_pretrained(folder, state_dict=state, save_embedding_layers=False)
        if job.changes_config:
            _base_config(model.config, job).save_pretrained(folder)
        if heads.is_encoder_decoder(model.config):
            # The base model's own may write another language.
            generation = copy.deepcopy(model.generation_config)
            generation.update(eos_token_id=job.stop_tokens, **job.generation)
            generation.save_pretrained(folder)
    else:
        if heads.writes_text(model.config):
            model.generation_config.eos_token_id = job.stop_tokens
            model.generation_config.update(**job.generation)
        model.save_pretrained(folder)
    job.tokenizer.save_pretrained(folder)
    if job.images is not None:
        job.images.save(folder)


def _base_config(config: PreTrainedConfig, job: TrainingJob) -> PreTrainedConfig:
    """Return the config to load an adapter's base with: its files have no rows for new tokens."""
    base = copy.deepcopy(config)
    base.get_text_config().vocab_size = job.vocabulary
    return base


def set_base_name(model: PeftModel, base: str) -> None:
    """Set the base name in an adapter's config: upstream writes the local folder's path."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = base


def write_records(
    folder: Path, job: TrainingJob, samples: Sequence[Sampled], metrics: Mapping[str, Any]
) -> None:
    """Write the run's recipe, sample answers and metrics."""
    shutil.copyfile(job.run_dir.recipe, folder / "recipe.yaml")
    records = [sample.model_dump(exclude={"seq", "at", "kind"}) for sample in samples]
    _write_json(folder / "samples.json", records)
    _write_json(folder / "metrics.json", metrics)


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
