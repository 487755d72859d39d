"""Exports of a run's model: create, list, register as a base model, delete.

A worker does the work. Deleting is the only way to cancel: a worker that misses the row ends the
process.

"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlmodel import Session, col, select
from sqlmodel import delete as remove

from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Model
from studio.db.tasks import Export
from studio.errors import ConflictError, DiskFullError, InvalidError, NotFoundError
from studio.protocols.events import Event
from studio.protocols.run_dir import RunDir
from studio.recipe.exports import ExportKind, export_kinds
from studio.recipe.float_formats import DType
from studio.services.exports import export_formats
from studio.services.models import models
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.services.runs import runs
from studio.services.storage import atomic_dirs
from studio.services.tasks import task_lifecycle

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
    if reason := export_formats.explain_refusal(
        chosen, dtype, export_formats.load_weight_facts(db, run, artifacts)
    ):
        raise InvalidError(reason, hint="Use bfloat16, which has a wider range.", param="dtype")
    _require_disk_space(export_formats.count_weights(run, chosen), dtype, chosen, run_folders)
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
    if finished := task_lifecycle.apply_events(export, events, offset, PROCESS_NAME):
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
