"""Exports of a run's model: their formats; create, list, register as a base model, delete.

A worker does the work. Deleting is the only way to cancel: a worker that misses the row ends the
process.

"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlmodel import Session, col, select
from sqlmodel import delete as remove

from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Model, Run
from studio.db.tasks import Export
from studio.errors import ConflictError, DiskFullError, InvalidError, NotFoundError
from studio.protocols.events import Event
from studio.protocols.run_dir import RunDir
from studio.recipe.exports import (
    EXPORT_FORMATS,
    ExportDType,
    ExportFormat,
    ExportKind,
    NumberFormat,
    explain_missing,
    export_kinds,
    number_format,
)
from studio.recipe.precision import FLOAT_FORMATS, DType
from studio.services.models import endpoint_uses, models
from studio.services.precision import recommendation
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.services.runs import runs
from studio.services.storage import atomic_dirs
from studio.services.tasks import tasks
from studio.weights import family_limits
from studio.weights.model_facts import ModelFacts
from studio.weights.weight_samples import FLOAT16_MAX

_SMALLEST_NORMAL_FLOAT16 = 2**-14
"""Below this, float16 loses precision (subnormal numbers) until values become zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOption:
    """One way to export a run's model."""

    kind: ExportKind
    dtype: ExportDType
    title: str
    """Its number format, by the name that its users know."""
    bytes: int
    """Approximate size; 0 if the run did not report it."""
    cost: str
    """What it does to the weights, in one sentence."""
    refusal: str = ""
    """Why it is not possible, in one sentence."""
    hint: str = ""
    """What makes it possible, in one sentence."""
    caution: str = ""

    @property
    def format(self) -> ExportFormat:
        return EXPORT_FORMATS[self.kind]


def find_llama_quantize(configured: Path | None) -> Path | None:
    """Return where llama.cpp's program that quantises is: as configured, else on PATH."""
    found = shutil.which(configured or "llama-quantize")
    return Path(found) if found else None


def list_options(
    db: Session, run: Run, artifacts: Path, llama_quantize: Path | None = None
) -> Iterator[ExportOption]:
    """Yield the export options of a run's model, the exact format of each kind first."""
    facts = load_weight_facts(db, run, artifacts)
    for kind in export_kinds(run.recipe):
        for row in EXPORT_FORMATS[kind].number_formats:
            missing, hint = explain_missing(kind, row, facts.family, llama_quantize)
            yield ExportOption(
                kind=kind,
                dtype=row.name,
                title=row.title or row.name,
                bytes=count_bytes(run, kind, row, facts),
                cost=_option_cost(run, kind, row, facts),
                refusal=missing or explain_refusal(kind, row.name, facts),
                hint=hint,
                caution=_family_warning(kind, row.name, facts),
            )


def load_weight_facts(db: Session, run: Run, artifacts: Path) -> ModelFacts:
    """Return the facts of a run's weights: its own, or its adapter's base model's."""
    try:
        if run.recipe.adapter.kind == "full":
            return recommendation.read_model_facts(artifacts)
        return recommendation.load_model_facts(db, run.recipe.base_model)
    except InvalidError:  # the export itself reports unreadable files by name
        return ModelFacts()


def count_weights(run: Run, kind: ExportKind) -> int:
    """Return the number of exported weights as counted by the run, else 0."""
    trained = int(run.resolved.get("trainable_parameters", 0))
    if kind == "adapter":
        return trained
    counted = int(run.resolved.get("parameters", 0))
    # The run counted base and adapter; a merged adapter needs no space of its own.
    is_merged = kind != "full" and run.recipe.adapter.kind != "full"
    return max(0, counted - trained) if is_merged else counted


def count_bytes(run: Run, kind: ExportKind, row: NumberFormat, facts: ModelFacts) -> int:
    """Return the approximate size of an export; 0 if the run did not report its weights."""
    return row.count_bytes(count_weights(run, kind), facts.linear_parameters, facts.linear_rows)


def explain_refusal(kind: ExportKind, dtype: ExportDType, facts: ModelFacts) -> str:
    """Return why a format cannot hold the weights; empty if it can as far as known."""
    stats = facts.stats
    # bitsandbytes rounds weights to float16 before it quantises them to 8 bits.
    is_float16 = dtype == "float16" or (kind, dtype) == ("bitsandbytes", "int8")
    if kind == "adapter" or not is_float16 or not stats.over_float16:
        return ""
    return (
        f"{stats.over_float16:,} of {stats.sampled:,} sampled weights exceed "
        f"{FLOAT16_MAX:,.0f}, the largest float16 value; they would become infinite."
    )


def _option_cost(run: Run, kind: ExportKind, row: NumberFormat, facts: ModelFacts) -> str:
    if row.torch_name is None:
        return row.about
    if kind != "merged_original":
        return describe_cost(row.torch_name, _stored_dtype(run, kind, facts))
    return "Most weights differ from the trained ones; the export measures by how much."


def describe_cost(dtype: DType, stored: str) -> str:
    """Describe what one of torch's formats does to weights that are in another."""
    if dtype in {stored, "float32"}:
        return "No weight changes."
    float_format = FLOAT_FORMATS[dtype]
    change = f"A weight changes by up to {100 * float_format.eps / 2:.2g} %"
    if dtype == "float16":
        return (
            f"{change}, or more if it is smaller than {_SMALLEST_NORMAL_FLOAT16:.5f}; "
            f"weights above {float_format.max:,.0f} become infinite."
        )
    return f"{change}; none overflows, because the range equals float32's."


def _stored_dtype(run: Run, kind: ExportKind, facts: ModelFacts) -> str:
    """Return the dtype the weights are in now; merging an adapter makes them float32."""
    is_full = run.recipe.adapter.kind == "full" and kind != "adapter"
    return (facts.main_dtype or str(run.resolved.get("weights", ""))) if is_full else "float32"


def _family_warning(kind: ExportKind, dtype: ExportDType, facts: ModelFacts) -> str:
    overflow = family_limits.FLOAT16_OVERFLOWS.get(facts.family)
    if kind == "adapter" or dtype != "float16" or overflow is None:
        return ""
    return f"{facts.family} models may fail in float16: {overflow.reason} ({overflow.source})."


PROCESS_NAME = "export"
"""What its process is called in messages."""


def create(
    db: Session,
    run_id: int,
    dtype: ExportDType,
    kind: ExportKind | None,
    run_folders: Path,
    llama_quantize: Path | None = None,
) -> Export:
    """Queue an export of a run's model; without a kind, of the most useful that has the format.

    Raises:
        ConflictError: the run has no model to export, or the same export exists.
        InvalidError: the run does not support the kind, its weights exceed the format, or what
            writes it is missing.
        DiskFullError: there is not enough disk space.

    """
    run = runs.get(db, run_id)
    artifacts = RunDir(run_folders / str(run_id)).artifacts
    if run.status is not RunStatus.SUCCEEDED or not artifacts.is_dir():
        raise ConflictError(
            f"Run {run_id} is {run.status} and has no model to export.",
            hint="Only succeeded runs can be exported.",
        )
    chosen = _choose_kind(run, dtype, kind)
    _refuse_duplicate(db, run_id, dtype, chosen)
    facts = load_weight_facts(db, run, artifacts)
    row = number_format(chosen, dtype)
    missing, hint = explain_missing(chosen, row, facts.family, llama_quantize)
    if missing:
        raise InvalidError(missing, hint=hint, param="kind")
    if reason := explain_refusal(chosen, dtype, facts):
        raise InvalidError(reason, hint="Use bfloat16, which has a wider range.", param="dtype")
    # A merged model is written in float32 before it is rounded; merged into the original base, or
    # in GGUF, there is another such copy on the way.
    copies = EXPORT_FORMATS[chosen].float32_copies
    widened = count_weights(run, chosen) * DTYPE_BYTES["float32"] * copies
    _require_disk_space(count_bytes(run, chosen, row, facts) + widened, run_folders)
    export = Export(run_id=run_id, kind=chosen, dtype=dtype)
    db.add(export)
    db.flush()
    return export


def _choose_kind(run: Run, dtype: ExportDType, kind: ExportKind | None) -> ExportKind:
    possible = export_kinds(run.recipe)
    run_id, chosen = run.id, kind or possible[0]
    if chosen not in possible:
        raise InvalidError(
            f"Run {run_id} cannot be exported as {chosen}.",
            hint=f"It can be exported as {' or '.join(possible)}.",
            param="kind",
        )
    fitting = [one for one in possible if _offers(one, dtype) and kind in (None, one)]
    if not fitting:
        raise InvalidError(
            f"An export as {chosen} has no format {dtype}.",
            hint="Choose one that the page of the run offers.",
            param="dtype",
        )
    return fitting[0]


def _offers(kind: ExportKind, dtype: ExportDType) -> bool:
    return any(row.name == dtype for row in EXPORT_FORMATS[kind].number_formats)


def get(db: Session, run_id: int, export_id: int) -> Export:
    export = db.get(Export, export_id)
    if export is None or export.run_id != run_id:
        raise NotFoundError(
            f"Run {run_id} has no export {export_id}.", hint="It may have been deleted."
        )
    return export


def list_for_run(db: Session, run_id: int) -> Sequence[Export]:
    """Return a run's exports, newest first."""
    query = select(Export).where(Export.run_id == run_id).order_by(col(Export.id).desc())
    return db.exec(query).all()


def task_subject(export_id: int) -> str:
    """Return the subject of tasks that need an export's files."""
    return f"export:{export_id}"


def delete(db: Session, run_id: int, export_id: int, run_folders: Path) -> None:
    """Delete an export, finished or not, its files, and the base model registered from it."""
    export = get(db, run_id, export_id)
    endpoint_uses.require_export_unused(db, export_id)
    folder = RunDir(run_folders / str(run_id)).export(export_id)
    for task in tasks.list_for_subject(db, task_subject(export_id)):
        if not task.status.is_final:
            tasks.cancel(task)
    db.exec(remove(Model).where(col(Model.location) == str(folder.files)))
    db.delete(export)
    atomic_dirs.delete_on_commit(db, folder.root)


def register_model(db: Session, run_id: int, export_id: int, run_folders: Path) -> Model:
    """Register an export as a base model that runs can start from.

    Raises:
        ConflictError: it is not finished, only an adapter, or already registered.

    """
    export = get(db, run_id, export_id)
    if export.status is not TaskStatus.SUCCEEDED or not is_base_model(export):
        raise ConflictError(
            f"Export {export_id} is not a complete model.",
            hint="Only a finished export of a complete model can be a base model.",
        )
    folder = RunDir(run_folders / str(run_id)).export(export_id)
    model = models.add(db, registered_name(export), str(folder.files), kind="run")
    model.run_id = run_id
    return model


def is_base_model(export: Export) -> bool:
    """Whether runs can start from an export of this kind."""
    return any(kind == export.kind and row.is_base_model for kind, row in EXPORT_FORMATS.items())


def is_quantised(export: Export) -> bool:
    """Whether an export is a folder whose linear layers are quantised."""
    return any(
        kind == export.kind and any(number.other_bits for number in row.number_formats)
        for kind, row in EXPORT_FORMATS.items()
    )


def registered_name(export: Export) -> str:
    """Return the name of an export among the base models."""
    kind = "-original" if export.kind == "merged_original" else ""
    return f"run-{export.run_id}-{export.dtype}{kind}"


def registered_models(db: Session, run_id: int) -> dict[str, str]:
    """Return the locations of a run's registered base models, with their names."""
    query = select(Model).where(Model.run_id == run_id)
    return {model.location: model.name for model in db.exec(query)}


def apply_events(export: Export, events: Iterable[Event], offset: int) -> None:
    """Apply the events that an export's process wrote since the last call."""
    if finished := tasks.apply_work_events(export, events, offset, PROCESS_NAME):
        export.measured = finished.metrics


def _refuse_duplicate(db: Session, run_id: int, dtype: ExportDType, kind: ExportKind) -> None:
    for export in list_for_run(db, run_id):
        if (export.dtype, export.kind) == (dtype, kind) and export.status is not TaskStatus.FAILED:
            raise ConflictError(
                f"Run {run_id} already has an export in {dtype} ({kind}): export {export.id}.",
                hint="Download that one, or delete it first.",
            )


def _require_disk_space(needed: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskFullError(
            f"This export needs about {needed / 1e9:,.1f} GB; only {free / 1e9:,.1f} GB are free.",
            hint="Delete old runs or exports, then try again.",
        )
