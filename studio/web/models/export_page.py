"""The exports on a run's page: request one, follow its progress, see its measured accuracy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.db.tasks import Export
from studio.errors import InvalidError
from studio.protocols.run_dir import RunDir
from studio.recipe.exports import ExportKind
from studio.recipe.precision import DType
from studio.services.exports import exports
from studio.services.exports.exports import ExportOption
from studio.services.queue import overview
from studio.services.queue.overview import Wait
from studio.services.runs import artifacts, runs
from studio.services.runs.artifacts import ArtifactFile
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, redirect

router = APIRouter(prefix="/runs/{run_id}/exports", include_in_schema=False)

_EXPORT_CHOICE = TypeAdapter(tuple[ExportKind, DType])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """An export as a row of the page."""

    export: Export
    files: list[ArtifactFile]
    model_name: str
    """Its name among the base models, if it is one."""
    wait: Wait | None
    """Why it waits, if it does."""

    @property
    def is_going(self) -> bool:
        return not self.export.status.is_final


@router.get("")
def listing(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    rows = list_exports(db, run, config.runs)
    return block(request, "runs/files.html", "exports", run=run, exports=rows)


@router.post("")
def request_export(
    request: Request, run_id: int, db: DB, config: Config, model: Annotated[str, Form()] = ""
) -> Response:
    """Queue an export; `model` is its kind and its format, separated by a space."""
    kind, dtype = _parse_choice(model)
    exports.create(db, run_id, dtype, kind, config.runs)
    return redirect(request, f"/runs/{run_id}/files#exports")


@router.post("/{export_id}/delete")
def delete(request: Request, run_id: int, export_id: int, db: DB, config: Config) -> Response:
    exports.delete(db, run_id, export_id, config.runs)
    return redirect(request, f"/runs/{run_id}/files#exports")


@router.post("/{export_id}/model")
def add_to_models(
    request: Request, run_id: int, export_id: int, db: DB, config: Config
) -> Response:
    exports.register_model(db, run_id, export_id, config.runs)
    return redirect(request, f"/runs/{run_id}/files#exports")


def list_exports(db: Session, run: Run, run_folders: Path) -> list[ExportRow]:
    """Return a run's exports as rows of its page, newest first."""
    folder = RunDir(run_folders / str(run.id))
    bases = exports.registered_models(db, run.id or 0)
    return [
        ExportRow(
            export=export,
            files=artifacts.list_files(folder.export(export.id or 0).files),
            model_name=bases.get(str(folder.export(export.id or 0).files), ""),
            wait=overview.explain_work_wait(db, export),
        )
        for export in exports.list_for_run(db, run.id or 0)
    ]


def format_choices(db: Session, run: Run, run_folders: Path) -> list[ExportOption]:
    """Return the formats in which a run can be exported; empty until it has succeeded."""
    folder = RunDir(run_folders / str(run.id)).artifacts
    if run.status is not RunStatus.SUCCEEDED or not folder.is_dir():
        return []
    return list(exports.list_options(db, run, folder))


def _parse_choice(model: str) -> tuple[ExportKind, DType]:
    try:
        return _EXPORT_CHOICE.validate_python(tuple(model.split(" ")))
    except ValidationError as error:
        raise InvalidError("Choose an export format.", param="model") from error
