"""The exports on a run's page: request one, follow its progress, see its measured accuracy."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.db.tasks import Export
from studio.errors import InvalidError
from studio.protocols.run_dir import RunDir
from studio.recipe.exports import EXPORT_FORMATS, ExportDType, ExportFormat, ExportKind
from studio.services.exports import exports, hub_pushes
from studio.services.exports.exports import ExportOption
from studio.services.exports.hub_pushes import HubPush
from studio.services.models import downloads
from studio.services.queue import overview
from studio.services.queue.overview import Wait
from studio.services.runs import artifacts, runs
from studio.services.runs.artifacts import ArtifactFile
from studio.settings import Settings
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, redirect

router = APIRouter(prefix="/runs/{run_id}/exports", include_in_schema=False)

_EXPORT_KIND: TypeAdapter[ExportKind] = TypeAdapter(ExportKind)
_EXPORT_CHOICE = TypeAdapter(tuple[ExportKind, ExportDType])


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTarget:
    """Where exports can be uploaded."""

    host: str
    has_token: bool
    repo: str
    """A name to suggest; empty if the owner is not known yet."""


@dataclass(frozen=True, slots=True)
class PushRow:
    """An upload of an export, as a line below it."""

    push: HubPush
    wait: Wait | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """An export as a row of the page."""

    export: Export
    files: list[ArtifactFile]
    model_name: str
    """Its name among the base models, if it is one."""
    wait: Wait | None
    """Why it waits, if it does."""
    pushes: list[PushRow]
    """Its uploads to the hub, newest first."""
    hub: HubTarget

    @property
    def is_going(self) -> bool:
        return not self.export.status.is_final

    @property
    def is_moving(self) -> bool:
        """Whether it or an upload of it is under way."""
        return self.is_going or any(row.push.is_going for row in self.pushes)

    @property
    def is_base_model(self) -> bool:
        """Whether runs can start from it."""
        return exports.is_base_model(self.export)

    @property
    def format(self) -> ExportFormat:
        """Its row in the table of formats."""
        return EXPORT_FORMATS[_EXPORT_KIND.validate_python(self.export.kind)]

    @property
    def number_title(self) -> str:
        """Its number format, by the name that its users know."""
        rows = (row for row in self.format.number_formats if row.name == self.export.dtype)
        return next((row.title for row in rows), "") or self.export.dtype


@router.get("")
def listing(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    rows = list_exports(db, run, config)
    return block(request, "runs/files.html", "exports", run=run, exports=rows)


@router.post("")
def request_export(
    request: Request, run_id: int, db: DB, config: Config, model: Annotated[str, Form()] = ""
) -> Response:
    """Queue an export; `model` is its kind and its format, separated by a space."""
    kind, dtype = _parse_choice(model)
    quantiser = exports.find_llama_quantize(config.llama_quantize)
    exports.create(db, run_id, dtype, kind, config.runs, quantiser)
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


class PushForm(BaseModel):
    """What the dialog of an upload asks for."""

    repo: str = Field("", max_length=200)
    public: bool = False
    """Whether everyone can see a repository that is created."""


@router.post("/{export_id}/pushes")
def push(
    request: Request,
    run_id: int,
    export_id: int,
    db: DB,
    config: Config,
    sent: Annotated[PushForm, Form()],
) -> Response:
    """Queue the upload of an export to the hub."""
    repo = sent.repo.strip()
    hub_pushes.create(db, config, run_id, export_id, repo, is_private=not sent.public)
    return redirect(request, f"/runs/{run_id}/files#exports")


def list_exports(db: Session, run: Run, config: Settings) -> list[ExportRow]:
    """Return a run's exports as rows of its page, newest first."""
    folder = RunDir(config.runs / str(run.id))
    bases = exports.registered_models(db, run.id or 0)
    hub = HubTarget(
        host=downloads.hub_client(config).host,
        has_token=hub_pushes.has_token(db, config),
        repo=hub_pushes.suggest_repo(db, run),
    )
    return [
        ExportRow(
            export=export,
            files=artifacts.list_files(folder.export(export.id or 0).files),
            model_name=bases.get(str(folder.export(export.id or 0).files), ""),
            wait=overview.explain_work_wait(db, export),
            pushes=[
                PushRow(push, overview.explain_work_wait(db, push.task))
                for push in hub_pushes.list_for_export(db, export)
            ],
            hub=hub,
        )
        for export in exports.list_for_run(db, run.id or 0)
    ]


def format_choices(db: Session, run: Run, config: Settings) -> list[ExportOption]:
    """Return the formats in which a run can be exported; empty until it has succeeded."""
    folder = RunDir(config.runs / str(run.id)).artifacts
    if run.status is not RunStatus.SUCCEEDED or not folder.is_dir():
        return []
    quantiser = exports.find_llama_quantize(config.llama_quantize)
    return list(exports.list_options(db, run, folder, quantiser))


def _parse_choice(model: str) -> tuple[ExportKind, ExportDType]:
    try:
        return _EXPORT_CHOICE.validate_python(tuple(model.split(" ")))
    except ValidationError as error:
        raise InvalidError("Choose an export format.", param="model") from error
