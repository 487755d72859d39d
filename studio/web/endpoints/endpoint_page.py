"""The Serve page: endpoints with their state, and the form that adds one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.endpoints import Endpoint
from studio.db.tables import Run
from studio.engines import ENGINES
from studio.engines.engine import Engine
from studio.errors import InvalidError, StudioError
from studio.services.endpoints import endpoints, sources
from studio.services.endpoints.sources import Source
from studio.services.runs import artifacts, runs
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.rendering.render import block, page, redirect, refused_form

router = APIRouter(prefix="/endpoints", include_in_schema=False)

EndpointId = Annotated[int, Path(ge=1, lt=2**63)]
SourceText = Annotated[str, Query(alias="from", max_length=100)]

LOG_LINES = 200
RUNS_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRow:
    """An endpoint as a row of the page."""

    endpoint: Endpoint
    engine: Engine
    source: Source
    run_name: str


@router.get("")
def listing(request: Request, db: DB, config: Config) -> Response:
    address = config.public_url.rstrip("/") or str(request.base_url).rstrip("/")
    return page(
        request,
        "endpoints/list.html",
        endpoints=list_rows(db),
        address=f"{address}/v1",
        has_worker=bool(workers.list_alive(db)),
    )


@router.get("/list")
def rows(request: Request, db: DB) -> Response:
    """Show the endpoints alone: open pages ask for them again and again."""
    return block(request, "endpoints/list.html", "listed", endpoints=list_rows(db))


@router.get("/new")
def new(request: Request, db: DB, config: Config, source: SourceText = "") -> Response:
    """Show the form for a model; without one, the runs whose model can be served."""
    if not source:
        found = list(sources.list_servable_runs(db, config.runs, limit=RUNS_SHOWN))
        return page(request, "endpoints/choose.html", runs=found)
    return page(request, "endpoints/new.html", **_form_context(db, config, source, {}))


@router.post("/new")
def create(request: Request, db: DB, config: Config, form: PostedForm) -> Response:
    text = str(form.get("source", ""))
    try:
        idle = _parse_idle(str(form.get("idle_minutes", "")))
        engine = _parse_engine(str(form.get("engine", "")))
        name = str(form.get("name", "")).strip()
        endpoints.create(db, config, name, sources.parse(text), engine, idle)
    except StudioError as error:
        context = _form_context(db, config, text, form, error)
        return refused_form(request, "endpoints/new.html", **context)
    return redirect(request, "/endpoints")


@router.post("/{endpoint_id}/start")
def start(request: Request, endpoint_id: EndpointId, db: DB) -> Response:
    endpoints.start(endpoints.get(db, endpoint_id))
    return redirect(request, "/endpoints")


@router.post("/{endpoint_id}/stop")
def stop(request: Request, endpoint_id: EndpointId, db: DB) -> Response:
    endpoints.stop(endpoints.get(db, endpoint_id))
    return redirect(request, "/endpoints")


@router.post("/{endpoint_id}/delete")
def delete(request: Request, endpoint_id: EndpointId, db: DB, config: Config) -> Response:
    endpoints.delete(db, endpoint_id, config.endpoint_logs)
    return redirect(request, "/endpoints")


@router.get("/{endpoint_id}/log")
def show_log(request: Request, endpoint_id: EndpointId, db: DB, config: Config) -> Response:
    endpoint = endpoints.get(db, endpoint_id)
    lines = artifacts.read_log(
        endpoints.log_file(config.endpoint_logs, endpoint), None, LOG_LINES
    ).lines
    row = _row(db, endpoint)
    return page(request, "endpoints/log.html", row=row, lines=lines)


def list_rows(db: Session) -> list[EndpointRow]:
    return [_row(db, endpoint) for endpoint in endpoints.list_all(db)]


def _row(db: Session, endpoint: Endpoint) -> EndpointRow:
    run = db.get(Run, endpoint.run_id)
    return EndpointRow(
        endpoint=endpoint,
        engine=ENGINES[endpoint.engine],
        source=sources.source_of(endpoint),
        run_name=run.name if run else "",
    )


def _form_context(
    db: Session,
    config: Settings,
    text: str,
    form: Mapping[str, Any],
    problem: StudioError | None = None,
) -> dict[str, Any]:
    """Return what the form shows: what of the run can be served, and by which engines.

    Raises:
        InvalidError: No run was named.
        NotFoundError: There is no such run.

    """
    source = sources.parse(text)
    run = runs.get(db, source.run_id)
    found = list(sources.list_sources(db, config.runs, run))
    if not found:
        sources.resolve(db, config.runs, source)  # It raises what is wrong.
    servable = next((one for other, one in found if other == source), found[0][1])
    chosen = source if any(other == source for other, _one in found) else found[0][0]
    engines = list(endpoints.list_engines(config, servable))
    return {
        "run": run,
        "chosen": chosen,
        "choices": [(sources.to_text(other), other, one.format) for other, one in found],
        "source_text": sources.to_text(chosen),
        "format": servable.format,
        "engines": engines,
        "engine": form.get("engine") or endpoints.default_engine(engines),
        "name": form.get("name") or endpoints.suggest_name(db, chosen, run.name),
        "idle_minutes": form.get("idle_minutes", str(endpoints.DEFAULT_IDLE_MINUTES)),
        "problem": problem,
    }


def _parse_idle(text: str) -> int | None:
    """Return a number of minutes; None for an empty text."""
    text = text.strip()
    if not text:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) <= len("99999")
    if not is_number or not 0 < int(text) <= endpoints.MAX_IDLE_MINUTES:
        raise InvalidError(
            f"Enter whole minutes from 1 to {endpoints.MAX_IDLE_MINUTES:,}.",
            hint="Leave it empty to keep the model loaded.",
            param="idle_minutes",
        )
    return int(text)


def _parse_engine(text: str) -> Any:  # noqa: ANN401 -- one of the literal names, or None
    if text and text not in ENGINES:
        raise InvalidError("Choose an engine.", param="engine")
    return text or None
