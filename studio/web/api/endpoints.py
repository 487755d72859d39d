"""REST routes of endpoints: models that are served under a name of their own."""

from datetime import datetime
from typing import Annotated, Any

from annotated_types import Ge, Le
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from studio.db.endpoints import Endpoint
from studio.db.states import EndpointState
from studio.engines.engine import EngineName
from studio.services.endpoints import endpoints
from studio.services.endpoints.sources import Source
from studio.services.runs import artifacts
from studio.web.api import conventions as api
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/endpoints", tags=["endpoints"])

LOG_LINES = 500

Minutes = Annotated[int, Ge(1), Le(endpoints.MAX_IDLE_MINUTES)]


class NewEndpoint(api.Body):
    name: api.Name
    """What programs send as `model`: letters, digits, dots, hyphens and underscores."""
    run_id: api.BodyId
    step: Annotated[int, Ge(0), Le(2**53)] | None = None
    """The step of a checkpoint of the run, to serve it instead of the result."""
    export_id: api.BodyId | None = None
    """An export of the run, to serve it instead of the run's own files."""
    engine: EngineName | None = None
    """By default the first one that can serve this model."""
    idle_minutes: Minutes | None = endpoints.DEFAULT_IDLE_MINUTES
    """After so long without a request it gives its slot up, until the next one; null for never."""


class EndpointChanges(api.Body):
    idle_minutes: Minutes | None


class EndpointOut(api.Out):
    id: int
    name: str
    engine: EngineName
    run_id: int
    step: int | None
    export_id: int | None
    state: EndpointState
    """`idle`: it starts again on the next request. `failing`: it ended too often, and stays down
    until you start it."""
    is_wanted: bool
    """Whether it was started, and not stopped since."""
    note: str
    """What it waits for; empty if for nothing."""
    error: str
    """Why it ended last time; empty if all is well."""
    idle_minutes: int | None
    requests: int
    last_used_at: datetime | None
    ready_at: datetime | None
    created_at: datetime


@router.get("")
def newest(db: DB) -> api.Listing[EndpointOut]:
    return api.Listing[EndpointOut].complete(map(_endpoint_out, endpoints.list_all(db)))


@router.post("", status_code=api.CREATED)
def create(new: NewEndpoint, db: DB, config: Config, response: Response) -> EndpointOut:
    """Create an endpoint, which starts as soon as a slot is free.

    Ask it by its name, at `/v1/chat/completions` or `/v1/completions`.
    """
    source = Source(run_id=new.run_id, step=new.step, export_id=new.export_id)
    endpoint = endpoints.create(db, config, new.name, source, new.engine, new.idle_minutes)
    response.headers["Location"] = f"/api/v1/endpoints/{endpoint.id}"
    return _endpoint_out(endpoint)


@router.get("/{endpoint_id}")
def show(endpoint_id: api.Id, db: DB) -> EndpointOut:
    return _endpoint_out(endpoints.get(db, endpoint_id))


@router.patch("/{endpoint_id}")
def change(endpoint_id: api.Id, changes: EndpointChanges, db: DB) -> EndpointOut:
    endpoint = endpoints.get(db, endpoint_id)
    endpoint.idle_minutes = changes.idle_minutes
    return _endpoint_out(endpoint)


@router.delete("/{endpoint_id}", status_code=204)
def delete(endpoint_id: api.Id, db: DB, config: Config) -> None:
    """Delete an endpoint and its log. The model stays."""
    endpoints.delete(db, endpoint_id, config.endpoint_logs)


@router.post("/{endpoint_id}/start")
def start(endpoint_id: api.Id, db: DB) -> EndpointOut:
    """Start an endpoint that is stopped, idle or failing."""
    endpoint = endpoints.get(db, endpoint_id)
    endpoints.start(endpoint)
    return _endpoint_out(endpoint)


@router.post("/{endpoint_id}/stop")
def stop(endpoint_id: api.Id, db: DB) -> EndpointOut:
    """Stop an endpoint at once, until it is started again."""
    endpoint = endpoints.get(db, endpoint_id)
    endpoints.stop(endpoint)
    return _endpoint_out(endpoint)


@router.get("/{endpoint_id}/log", response_class=PlainTextResponse)
def log(endpoint_id: api.Id, db: DB, config: Config) -> str:
    """Return the last lines that the program of an endpoint wrote."""
    file = endpoints.log_file(config.endpoint_logs, endpoints.get(db, endpoint_id))
    return "\n".join(artifacts.read_log(file, None, LOG_LINES).lines)


def _endpoint_out(endpoint: Endpoint) -> EndpointOut:
    fields: dict[str, Any] = endpoint.model_dump(include=set(EndpointOut.model_fields))
    error = f"{endpoint.error_message} {endpoint.error_hint}".strip()
    return EndpointOut.model_validate(fields | {"error": error})
