"""What an endpoint serves: the model of a run, of a checkpoint or of an export, as files."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.endpoints import Endpoint
from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Run
from studio.engines.engine import Engine, ModelFormat
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError
from studio.methods import AnyRecipe
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import PRECISIONS
from studio.services.exports import exports
from studio.services.models import served_models
from studio.services.models.served_models import ServedModel
from studio.services.runs import artifacts, runs
from studio.services.runs.runs import RunFilter

ADAPTER_CONFIG = "adapter_config.json"

_FORMAT_TITLES: Mapping[ModelFormat, str] = {
    "folder": "a model in safetensors",
    "adapter": "an adapter",
    "gguf": "a GGUF file",
}
_VLLM_FORMATS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a person chose to serve."""

    run_id: int
    step: int | None = None
    """The step of a checkpoint; None for the result or an export."""
    export_id: int | None = None

    @property
    def title(self) -> str:
        if self.export_id is not None:
            return f"export {self.export_id} of run {self.run_id}"
        if self.step is not None:
            return f"step {self.step} of run {self.run_id}"
        return f"result of run {self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servable:
    """The files of a source, and how they are loaded."""

    format: ModelFormat
    path: Path
    """The folder of the model, its GGUF file, or for an adapter the base model."""
    adapter: Path | None = None
    dtype: str = "auto"
    """The number format that the run computed in, or that the export is in."""
    served: ServedModel | None = None
    """How the studio itself loads it; None if it cannot."""
    adapter_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def adapter_rank(self) -> int:
        ranks = (self.adapter_config.get("rank_pattern") or {}).values()
        return max(int(rank) for rank in (self.adapter_config.get("r") or 0, *ranks))


def source_of(endpoint: Endpoint) -> Source:
    return Source(run_id=endpoint.run_id, step=endpoint.step, export_id=endpoint.export_id)


def resolve(db: Session, run_folders: Path, source: Source) -> Servable:
    """Return the files of a source.

    Raises:
        ConflictError: It has no model, or none that writes text.
        NotFoundError: There is no such run, checkpoint or export, or its files are gone.

    """
    run = runs.get(db, source.run_id)
    folder = RunDir(run_folders / str(run.id))
    if run.deleted_at is not None:
        raise ConflictError(f"Run {run.id} is in the trash.", hint="Restore it first.")
    if run.recipe.outputs != "text":
        raise ConflictError(
            f"The model of run {run.id} writes no conversation.",
            hint="Only models that answer in a chat can be served.",
        )
    if run.status is not RunStatus.SUCCEEDED or not folder.artifacts.is_dir():
        raise ConflictError(
            f"Run {run.id} has no model to serve.", hint="Only succeeded runs can be served."
        )
    if source.export_id is not None:
        return _resolve_export(db, run, folder, source.export_id)
    return _resolve_run(run, folder, source.step)


def _resolve_run(run: Run, folder: RunDir, step: int | None) -> Servable:
    weights = ""
    if step is not None:
        kept = [checkpoint.step for checkpoint in artifacts.list_checkpoints(folder.checkpoints)]
        if step not in kept:
            raise NotFoundError(
                f"The checkpoint of step {step} was not kept.",
                hint=f"These were: {', '.join(map(str, kept))}." if kept else "None was kept.",
            )
        weights = str(folder.checkpoints / f"checkpoint-{step}")
    served = served_models.for_result(run, folder, weights)
    return _servable(served, compute_format(run.recipe))


def _resolve_export(db: Session, run: Run, folder: RunDir, export_id: int) -> Servable:
    export = exports.get(db, run.id or 0, export_id)
    files = folder.export(export_id).files
    if export.status is not TaskStatus.SUCCEEDED or not files.is_dir():
        raise ConflictError(
            f"Export {export_id} is {export.status}.", hint="Only finished exports can be served."
        )
    if found := find_gguf(files):
        return Servable(format="gguf", path=found, dtype=export.dtype)
    if exports.is_quantised(export):
        # Its config says how it is quantised.
        return Servable(format="folder", path=files)
    result = served_models.for_result(run, folder)
    if (files / ADAPTER_CONFIG).is_file():
        return _servable(replace(result, adapter=str(files)), export.dtype)
    served = ServedModel(model=str(files), code=result.code, image_options=result.image_options)
    return _servable(served, export.dtype)


def find_gguf(files: Path) -> Path | None:
    """Return the GGUF file of an export, or the first part of one that is split."""
    found = (path for path in sorted(files.glob("*.gguf")) if not path.name.startswith("mmproj"))
    return next(found, None)


def _servable(served: ServedModel, dtype: str) -> Servable:
    adapter = Path(served.adapter) if served.adapter else None
    return Servable(
        format="folder" if adapter is None else "adapter",
        path=Path(served.model),
        adapter=adapter,
        dtype=dtype,
        served=served,
        adapter_config=_read_adapter_config(adapter) if adapter else {},
    )


def _read_adapter_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config


def compute_format(recipe: AnyRecipe) -> str:
    """Return the format that a run multiplied in, or the next wider one that engines have."""
    precision = PRECISIONS[recipe.precision]
    if precision.matmul in _VLLM_FORMATS:
        return precision.matmul
    return "float32" if precision.matmul == "tf32" else "bfloat16"


def explain_refusal(engine: Engine, servable: Servable) -> str:
    """Return why an engine cannot serve something, in one sentence; empty if it can."""
    if servable.format not in engine.formats:
        return f"It serves {engine.needs}; this is {_FORMAT_TITLES[servable.format]}."
    if servable.format == "folder" and servable.served is None and not engine.is_external:
        return "It does not load quantised exports; export the model in bfloat16 instead."
    return next(_own_refusals(servable), "") if engine.name == "vllm" else ""


def _own_refusals(servable: Servable) -> Iterator[str]:
    """Yield what vLLM cannot load as it was trained."""
    served, config = servable.served, servable.adapter_config
    if served is None:
        return
    if served.code:
        yield "This model runs code of its own, which only the studio allows."
    if served.weights:
        yield "Checkpoints are served by the studio alone; export the run to serve its result."
    if served.rounded_to:
        yield (
            f"The adapter was trained with a base in {served.rounded_to}, which vLLM would load as "
            "it was saved; export the model merged."
        )
    if servable.adapter is None:
        return
    kind = str(config.get("peft_type", "")).upper()
    changed = [
        name
        for name in ("use_dora", "modules_to_save", "trainable_token_indices")
        if config.get(name)
    ]
    if kind != "LORA" or changed or config.get("bias", "none") != "none":
        yield "vLLM serves plain LoRA adapters, and this is another kind; export the model merged."


def list_sources(db: Session, run_folders: Path, run: Run) -> Iterator[tuple[Source, Servable]]:
    """Yield what can be served of a run: its result, its finished exports, its checkpoints."""
    run_id = run.id or 0
    folder = RunDir(run_folders / str(run_id))
    choices = [
        Source(run_id=run_id),
        *(Source(run_id=run_id, export_id=one.id) for one in exports.list_for_run(db, run_id)),
        *(
            Source(run_id=run_id, step=checkpoint.step)
            for checkpoint in artifacts.list_checkpoints(folder.checkpoints)
        ),
    ]
    for source in choices:
        try:
            yield source, resolve(db, run_folders, source)
        except (StudioError, OSError):  # Not finished, or its files are gone.
            continue


def list_servable_runs(db: Session, run_folders: Path, *, limit: int) -> Iterator[Run]:
    """Yield those of the newest succeeded runs whose result can be served."""
    for run in runs.newest(db, RunFilter(status=RunStatus.SUCCEEDED), limit=limit):
        try:
            resolve(db, run_folders, Source(run_id=run.id or 0))
        except (StudioError, OSError):  # It writes no text, or its files are gone.
            continue
        yield run


def parse(text: str) -> Source:
    """Return the source that a form names: `run:12`, `run:12@40` or `run:12/export:3`.

    Raises:
        InvalidError: It names none.

    """
    match = _SOURCE.fullmatch(text)
    if match is None:
        raise InvalidError("Choose what to serve.", param="source")
    run, export, step = (int(number) if number else None for number in match.groups())
    return Source(run_id=run or 0, step=step, export_id=export)


_SOURCE = re.compile(r"run:([0-9]{1,18})(?:/export:([0-9]{1,18}))?(?:@([0-9]{1,18}))?")


def to_text(source: Source) -> str:
    """Return a source as forms name it."""
    step = "" if source.step is None else f"@{source.step}"
    export = "" if source.export_id is None else f"/export:{source.export_id}"
    return f"run:{source.run_id}{export}{step}"
