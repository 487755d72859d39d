"""Requests to endpoints: what is noted of each, and what one waits for."""

from datetime import timedelta

from sqlmodel import Session

from studio.db.column_types import now
from studio.db.endpoints import Endpoint
from studio.db.states import EndpointState
from studio.engines import ENGINES
from studio.errors import ConflictError, StudioError, UnavailableError
from studio.services.endpoints import endpoints

BUSY_FOR = timedelta(seconds=60)
"""How long an endpoint counts as answering after each sign of it, so that a web process that was
killed does not make it look busy forever."""

EXTEND_SECONDS = 20.0
"""How often such a sign is given while an answer is written."""

NO_SLOT = "no_free_slot"

_WAITING = "waiting for "
_YIELDING = ("waiting for the loaded model", "waiting for the endpoint")
"""How reasons of `services.queue.overview` begin: for any slot, and for one that is free soon."""


def begin(db: Session, name: str) -> Endpoint | None:
    """Note a request to an endpoint, which starts for it if necessary; None if there is none.

    Raises:
        ConflictError: It is stopped.
        UnavailableError: It failed too often.

    """
    endpoint = endpoints.find_by_name(db, name)
    if endpoint is None:
        return None
    if error := find_obstacle(endpoint):
        raise error
    endpoint.requests += 1
    endpoint.last_used_at = now()
    if endpoint.state is EndpointState.READY or not ENGINES[endpoint.engine].is_external:
        endpoint.busy_until = now() + BUSY_FOR
    if endpoint.state is not EndpointState.READY:
        endpoint.requested_at = now()
    return endpoint


def take(db: Session, endpoint_id: int) -> Endpoint | None:
    """Take an endpoint that was waited for into use; None if it is not ready yet.

    Raises:
        ConflictError: It was stopped, or deleted.
        UnavailableError: It failed, or waits for a slot.

    """
    endpoint = db.get(Endpoint, endpoint_id)
    if endpoint is None:
        raise ConflictError("The endpoint was deleted.", hint="Ask another model.")
    if error := find_obstacle(endpoint):
        raise error
    if endpoint.state is not EndpointState.READY:
        endpoint.requested_at = endpoint.requested_at or now()
        return None
    endpoint.busy_until = endpoint.last_used_at = now()
    endpoint.busy_until += BUSY_FOR
    return endpoint


def explain_wait(endpoint: Endpoint) -> str:
    """Return what an endpoint is waiting for, as text."""
    return endpoint.note or "it is loading its model"


def is_blocked(endpoint: Endpoint) -> bool:
    """Whether an endpoint waits for work that keeps its slot: a run, an export or a task."""
    note = endpoint.note
    is_waiting = endpoint.pid is None and note.startswith(_WAITING)
    return is_waiting and not note.startswith(_YIELDING)


def find_obstacle(endpoint: Endpoint) -> StudioError | None:
    """Return why an endpoint cannot be asked at all."""
    if not endpoint.is_wanted:
        return _named(
            ConflictError(
                f"The endpoint {endpoint.name} is stopped.", hint="Start it on the Serve page."
            ),
            "endpoint_stopped",
        )
    if endpoint.state is EndpointState.FAILING:
        reason = endpoint.error_message or "its program ended"
        return _named(
            UnavailableError(
                f"The endpoint {endpoint.name} failed: {reason}",
                hint=endpoint.error_hint or "See its log on the Serve page.",
            ),
            "endpoint_failed",
        )
    return None


def no_slot_error(endpoint: Endpoint) -> StudioError:
    return _named(
        UnavailableError(
            f"No slot is free for the endpoint {endpoint.name}: {endpoint.note}.",
            hint="Try again later, or start the studio with more slots: STUDIO_SLOTS.",
        ),
        NO_SLOT,
    )


def too_late_error(endpoint: Endpoint, seconds: float) -> StudioError:
    return _named(
        UnavailableError(
            f"The endpoint {endpoint.name} did not start within {seconds:.0f} s: "
            f"{explain_wait(endpoint)}.",
            hint="Try again later; its log on the Serve page says more.",
        ),
        "endpoint_starting",
    )


def extend(db: Session, endpoint_id: int) -> None:
    """Note that an answer is still being written."""
    if endpoint := db.get(Endpoint, endpoint_id):
        endpoint.busy_until = now() + BUSY_FOR


def end(db: Session, endpoint_id: int, *, is_last: bool) -> None:
    """Note the end of an answer; `is_last` if no other one is being written."""
    if endpoint := db.get(Endpoint, endpoint_id):
        endpoint.last_used_at = now()
        if is_last:
            endpoint.busy_until = None


def _named(error: StudioError, code: str) -> StudioError:
    error.code = code
    return error
