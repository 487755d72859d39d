"""What can be done with endpoints: create, start, stop, change and delete them.

A worker does what is wanted: see `studio.worker.serving`. Deleting a row is enough to end its
process.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlmodel import Session, col, select

from studio.db.endpoints import Endpoint
from studio.db.states import EndpointState
from studio.engines import ENGINES
from studio.engines.engine import Engine, EngineName
from studio.errors import InvalidError, NotFoundError, UnavailableError
from studio.services.endpoints import sources
from studio.services.endpoints.sources import Servable, Source
from studio.services.models import models
from studio.services.storage import atomic_dirs
from studio.settings import Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_IDLE_MINUTES = 7 * 24 * 60
DEFAULT_IDLE_MINUTES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """An engine that could serve a source, or why it cannot."""

    engine: Engine
    refusal: str = ""
    hint: str = ""


def list_all(db: Session) -> Sequence[Endpoint]:
    """Return all endpoints, newest first."""
    return db.exec(select(Endpoint).order_by(col(Endpoint.id).desc())).all()


def get(db: Session, endpoint_id: int) -> Endpoint:
    endpoint = db.get(Endpoint, endpoint_id)
    if endpoint is None:
        raise NotFoundError(
            f"Endpoint {endpoint_id} does not exist.", hint="It may have been deleted."
        )
    return endpoint


def find_by_name(db: Session, name: str) -> Endpoint | None:
    return db.exec(select(Endpoint).where(Endpoint.name == name)).first()


def list_engines(settings: Settings, servable: Servable) -> Iterator[EngineChoice]:
    """Yield all engines, each with the reason why it cannot serve something, if it cannot."""
    for engine in ENGINES.values():
        refusal, hint = sources.explain_refusal(engine, servable), ""
        if not refusal and engine.is_external:
            try:
                engine.find_program(settings)
            except UnavailableError as error:
                refusal, hint = error.message, error.hint
        yield EngineChoice(engine=engine, refusal=refusal, hint=hint)


def default_engine(choices: Sequence[EngineChoice]) -> EngineName | None:
    """Return the first engine that can serve something; None if none can."""
    return next((choice.engine.name for choice in choices if not choice.refusal), None)


def create(
    db: Session,
    settings: Settings,
    name: str,
    source: Source,
    engine: EngineName | None = None,
    idle_minutes: int | None = DEFAULT_IDLE_MINUTES,
) -> Endpoint:
    """Create an endpoint, which then starts; without an engine, with the first that fits.

    Raises:
        ConflictError: The name is taken, or there is nothing to serve.
        InvalidError: The name is malformed, or the engine cannot serve this model.
        NotFoundError: What is to be served does not exist.
        UnavailableError: The program of the engine is missing.

    """
    _require_name(db, name)
    servable = sources.resolve(db, settings.runs, source)
    chosen = engine or default_engine(list(list_engines(settings, servable)))
    if chosen is None:
        raise InvalidError("No engine can serve this.", hint=_reasons(settings, servable))
    if refusal := sources.explain_refusal(ENGINES[chosen], servable):
        raise InvalidError(f"{ENGINES[chosen].title} cannot serve it. {refusal}", param="engine")
    if ENGINES[chosen].is_external:
        ENGINES[chosen].find_program(settings)
    endpoint = Endpoint(
        name=name,
        engine=chosen,
        run_id=source.run_id,
        step=source.step,
        export_id=source.export_id,
        idle_minutes=idle_minutes,
    )
    db.add(endpoint)
    db.flush()
    return endpoint


def start(endpoint: Endpoint) -> None:
    """Have an endpoint start; one that failed gets all its tries again."""
    if endpoint.state is EndpointState.READY:
        return
    endpoint.is_wanted, endpoint.state = True, EndpointState.STARTING
    endpoint.crashes, endpoint.note = 0, ""
    endpoint.error_message = endpoint.error_hint = ""


def stop(endpoint: Endpoint) -> None:
    """Have an endpoint stop, and stay so until it is started again."""
    endpoint.is_wanted, endpoint.state = False, EndpointState.STOPPED
    endpoint.note, endpoint.requested_at, endpoint.ready_at = "", None, None
    endpoint.error_message = endpoint.error_hint = ""


def delete(db: Session, endpoint_id: int, logs: Path) -> None:
    """Delete an endpoint and its log; the model stays."""
    endpoint = get(db, endpoint_id)
    db.delete(endpoint)
    atomic_dirs.delete_on_commit(db, log_file(logs, endpoint).parent)


def log_file(logs: Path, endpoint: Endpoint) -> Path:
    """Return the file with the output of an endpoint's program."""
    return logs / str(endpoint.id) / "log.txt"


def suggest_name(db: Session, source: Source, run_name: str) -> str:
    """Return a free name for an endpoint of a run."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", run_name).strip("-._")[:40] or "model"
    at = "" if source.step is None else f"-{source.step}"
    name, number = f"{plain}{at}", 2
    while find_by_name(db, name) or models.find_by_name(db, name):
        name, number = f"{plain}{at}-{number}", number + 1
    return name


def _require_name(db: Session, name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidError(
            "A name has up to 64 letters, digits, dots, hyphens and underscores.",
            hint="It starts with a letter or a digit.",
            param="name",
        )
    models.require_free_name(db, name)


def _reasons(settings: Settings, servable: Servable) -> str:
    reasons: Mapping[str, str] = {
        choice.engine.title: choice.refusal for choice in list_engines(settings, servable)
    }
    return " ".join(f"{title}: {reason}" for title, reason in reasons.items())
