"""Exports of a run's model: their formats; create, list, register as a base model, delete.

A worker does the work. Deleting is the only way to cancel: a worker that misses the row ends the
process.

"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sqlmodel import Session, col, select
from sqlmodel import delete as remove

from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Model, Run
from studio.db.tasks import Export
from studio.errors import ConflictError, DiskFullError, InvalidError, NotFoundError
from studio.protocols.events import Event
from studio.protocols.run_dir import RunDir
from studio.recipe.exports import ExportKind, export_kinds
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
    dtype: DType
    bytes: int
    """Approximate size; 0 if the run did not report it."""
    cost: str
    """What it does to the weights, in one sentence."""
    refusal: str = ""
    """Why it is not possible, in one sentence."""
    caution: str = ""


def list_options(db: Session, run: Run, artifacts: Path) -> Iterator[ExportOption]:
    """Yield the export options of a run's model, the exact format of each kind first."""
    facts = load_weight_facts(db, run, artifacts)
    for kind in export_kinds(run.recipe.adapter):
        for dtype in get_args(DType):
            yield ExportOption(
                kind=kind,
                dtype=dtype,
                bytes=count_weights(run, kind) * DTYPE_BYTES[dtype],
                cost=_option_cost(run, kind, dtype, facts),
                refusal=explain_refusal(kind, dtype, facts),
                caution=_family_warning(kind, dtype, facts),
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
    return max(0, counted - trained) if kind.startswith("merged") else counted


def explain_refusal(kind: ExportKind, dtype: DType, facts: ModelFacts) -> str:
    """Return why a format cannot hold the weights; empty if it can as far as known."""
    stats = facts.stats
    if kind == "adapter" or dtype != "float16" or not stats.over_float16:
        return ""
    return (
        f"{stats.over_float16:,} of {stats.sampled:,} sampled weights exceed "
        f"{FLOAT16_MAX:,.0f}, the largest float16 value; they would become infinite."
    )


def _option_cost(run: Run, kind: ExportKind, dtype: DType, facts: ModelFacts) -> str:
    if kind != "merged_original":
        return describe_cost(dtype, _stored_dtype(run, kind, facts))
    return "Most weights differ from the trained ones; the export measures by how much."


def describe_cost(dtype: DType, stored: str) -> str:
    """Describe what a format does to weights that are in another."""
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
    return (
        (facts.main_dtype or str(run.resolved.get("weights", ""))) if kind == "full" else "float32"
    )


def _family_warning(kind: ExportKind, dtype: DType, facts: ModelFacts) -> str:
    overflow = family_limits.FLOAT16_OVERFLOWS.get(facts.family)
    if kind == "adapter" or dtype != "float16" or overflow is None:
        return ""
    return f"{facts.family} models may fail in float16: {overflow.reason} ({overflow.source})."


PROCESS_NAME = "export"
"""What its process is called in messages."""


def create(
    db: Session, run_id: int, dtype: DType, kind: ExportKind | None, run_folders: Path
) -> Export:
    """Queue an export of a run's model; without a kind, of the most useful kind.

    Raises:
        ConflictError: the run has no model to export, or the same export exists.
        InvalidError: the run does not support the kind, or its weights exceed the format.
        DiskFullError: there is not enough disk space.

    """
    run = runs.get(db, run_id)
    artifacts = RunDir(run_folders / str(run_id)).artifacts
    if run.status is not RunStatus.SUCCEEDED or not artifacts.is_dir():
        raise ConflictError(
            f"Run {run_id} is {run.status} and has no model to export.",
            hint="Only succeeded runs can be exported.",
        )
    possible = export_kinds(run.recipe.adapter)
    chosen = kind or possible[0]
    if chosen not in possible:
        raise InvalidError(
            f"Run {run_id} cannot be exported as {chosen}.",
            hint=f"It can be exported as {' or '.join(possible)}.",
            param="kind",
        )
    _refuse_duplicate(db, run_id, dtype, chosen)
    if reason := explain_refusal(chosen, dtype, load_weight_facts(db, run, artifacts)):
        raise InvalidError(reason, hint="Use bfloat16, which has a wider range.", param="dtype")
    _require_disk_space(count_weights(run, chosen), dtype, chosen, run_folders)
    export = Export(run_id=run_id, kind=chosen, dtype=dtype)
    db.add(export)
    db.flush()
    return export


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


def delete(db: Session, run_id: int, export_id: int, run_folders: Path) -> None:
    """Delete an export, finished or not, its files, and the base model registered from it."""
    export = get(db, run_id, export_id)
    endpoint_uses.require_export_unused(db, export_id)
    folder = RunDir(run_folders / str(run_id)).export(export_id)
    db.exec(remove(Model).where(col(Model.location) == str(folder.files)))
    db.delete(export)
    atomic_dirs.delete_on_commit(db, folder.root)


def register_model(db: Session, run_id: int, export_id: int, run_folders: Path) -> Model:
    """Register an export as a base model that runs can start from.

    Raises:
        ConflictError: it is not finished, only an adapter, or already registered.

    """
    export = get(db, run_id, export_id)
    if export.status is not TaskStatus.SUCCEEDED or export.kind == "adapter":
        raise ConflictError(
            f"Export {export_id} is not a complete model.",
            hint="Only a finished export of a complete model can be a base model.",
        )
    folder = RunDir(run_folders / str(run_id)).export(export_id)
    model = models.add(db, registered_name(export), str(folder.files), kind="run")
    model.run_id = run_id
    return model


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


def _refuse_duplicate(db: Session, run_id: int, dtype: DType, kind: ExportKind) -> None:
    for export in list_for_run(db, run_id):
        if (export.dtype, export.kind) == (dtype, kind) and export.status is not TaskStatus.FAILED:
            raise ConflictError(
                f"Run {run_id} already has an export in {dtype} ({kind}): export {export.id}.",
                hint="Download that one, or delete it first.",
            )


def _require_disk_space(weights: int, dtype: DType, kind: ExportKind, folder: Path) -> None:
    # Merging an adapter writes float32 weights before rounding them; merging into the original
    # base writes another such copy, merged into the base the adapter was trained on.
    float32_copies = {"merged": 1, "merged_original": 2}.get(kind, 0)
    needed = weights * (DTYPE_BYTES[dtype] + DTYPE_BYTES["float32"] * float32_copies)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskFullError(
            f"This export needs about {needed / 1e9:,.1f} GB; only {free / 1e9:,.1f} GB are free.",
            hint="Delete old runs or exports, then try again.",
        )
