"""How the state of an endpoint changes while a worker starts, watches and stops it."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlmodel import Session

from studio.db.column_types import now
from studio.db.endpoints import Endpoint
from studio.db.states import EndpointState
from studio.errors import StudioError
from studio.services.accounts import secrets
from studio.services.endpoints import reasons
from studio.services.models import endpoint_uses
from studio.settings import Settings

MAX_CRASHES = 5
"""How often in a row its process may end by itself."""

STABLE_AFTER = timedelta(seconds=60)
"""An endpoint that was ready for so long gets all its tries again."""

SETTLE = timedelta(seconds=2)
"""How long an endpoint that has just become ready keeps its slot: its first request is coming."""

_MAX_BACKOFF_SECONDS = 30.0


def backoff_seconds(crashes: int) -> float:
    """Return how long to wait before the next try."""
    return min(_MAX_BACKOFF_SECONDS, 2.0 ** (crashes - 1)) if crashes else 0.0


def may_start(endpoint: Endpoint) -> bool:
    """Whether an endpoint without a process is to have one."""
    if not endpoint.is_wanted:
        return False
    if endpoint.state is EndpointState.IDLE:
        return is_asked_for(endpoint) or endpoint.idle_minutes is None
    return endpoint.state is EndpointState.STARTING


def is_asked_for(endpoint: Endpoint) -> bool:
    """Whether somebody waits for it, so that others give their slots up for it."""
    return endpoint.state is EndpointState.STARTING or endpoint.requested_at is not None


def record_process(
    endpoint: Endpoint, locked_key: str, port: int, process: tuple[int, float], gpu: int | None
) -> None:
    """Record the process of an endpoint that starts."""
    endpoint.state, endpoint.note = EndpointState.STARTING, ""
    endpoint.locked_key, endpoint.port, endpoint.gpu = locked_key, port, gpu
    endpoint.pid, endpoint.pid_started = process


def record_ready(endpoint: Endpoint) -> None:
    endpoint.state, endpoint.ready_at = EndpointState.READY, now()
    endpoint.note = endpoint.error_message = endpoint.error_hint = ""
    endpoint.requested_at = None


def record_stable(endpoint: Endpoint) -> None:
    """Forget earlier crashes of an endpoint that has been ready for long enough."""
    if endpoint.crashes and endpoint.ready_at and now() - endpoint.ready_at > STABLE_AFTER:
        endpoint.crashes = 0


def record_crash(endpoint: Endpoint, message: str, hint: str) -> None:
    """Record that a process ended by itself: it is tried again, but not forever."""
    forget_process(endpoint)
    if not endpoint.is_wanted:
        return
    endpoint.crashes += 1
    endpoint.error_message, endpoint.error_hint = message, hint
    if endpoint.crashes >= MAX_CRASHES:
        endpoint.state = EndpointState.FAILING
        endpoint.note, endpoint.requested_at = "", None
        return
    endpoint.state = EndpointState.STARTING
    endpoint.note = reasons.explain_retry(backoff_seconds(endpoint.crashes))


def record_failure(endpoint: Endpoint, error: StudioError) -> None:
    """Record that an endpoint cannot start, and that another try would be useless."""
    forget_process(endpoint)
    endpoint.state = EndpointState.FAILING
    endpoint.note, endpoint.requested_at = "", None
    endpoint.error_message, endpoint.error_hint = error.message, error.hint


def give_up_slot(endpoint: Endpoint, note: str) -> None:
    """Let an endpoint finish its answers and end; it starts again on the next request."""
    endpoint.state, endpoint.note = EndpointState.IDLE, note
    endpoint.ready_at = endpoint.requested_at = None


def forget_process(endpoint: Endpoint) -> None:
    endpoint.pid = endpoint.pid_started = endpoint.port = endpoint.gpu = None
    endpoint.locked_key, endpoint.ready_at, endpoint.busy_until = "", None, None


def record_lost(endpoint: Endpoint) -> None:
    """Record that a process was gone when a worker looked for it: it starts again."""
    forget_process(endpoint)
    if endpoint.is_wanted and endpoint.state is EndpointState.READY:
        endpoint.state, endpoint.note = EndpointState.STARTING, ""


def last_activity(endpoint: Endpoint) -> datetime | None:
    """Return when an endpoint was used last, or became ready."""
    times = [at for at in (endpoint.ready_at, endpoint.last_used_at, endpoint.busy_until) if at]
    return max(times, default=None)


def is_idle(endpoint: Endpoint) -> bool:
    """Whether a ready endpoint has had no request for the time that was chosen."""
    at = last_activity(endpoint)
    if endpoint.idle_minutes is None or at is None or endpoint.state is not EndpointState.READY:
        return False
    return now() - at >= timedelta(minutes=endpoint.idle_minutes)


def can_yield(endpoint: Endpoint) -> bool:
    """Whether an endpoint can give its slot up: it has answered what it was started for."""
    if endpoint.state is not EndpointState.READY or endpoint.ready_at is None:
        return False
    return now() - endpoint.ready_at > SETTLE


def yield_order(endpoint: Endpoint) -> tuple[bool, float]:
    """Return the order in which endpoints give their slots up: idle ones, longest unused first."""
    at = last_activity(endpoint)
    return endpoint_uses.is_busy(endpoint), at.timestamp() if at else 0.0


def lock_key(db: Session, settings: Settings, endpoint: Endpoint, key: str) -> str:
    return secrets.lock(db, settings, _key_name(endpoint), key)


def read_key(settings: Settings, endpoint: Endpoint) -> str:
    """Return the key that the process of an endpoint asks for.

    Raises:
        UnavailableError: It cannot be decrypted.

    """
    title = f"The key of the endpoint {endpoint.name}"
    return secrets.unlock(settings, _key_name(endpoint), title, endpoint.locked_key)


def _key_name(endpoint: Endpoint) -> str:
    return f"endpoint:{endpoint.id}"


def headers(key: str) -> Mapping[str, str]:
    """Return the headers of a request to an endpoint's own address."""
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
