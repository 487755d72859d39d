"""What endpoints hold: the runs and exports that they serve, and the slots of their processes."""

from collections.abc import Sequence

from sqlmodel import Session, col, select

from studio.db.column_types import now
from studio.db.endpoints import Endpoint
from studio.db.states import EndpointState
from studio.errors import ConflictError

SLOTS_USED = 1
"""Run slots that the process of an endpoint occupies."""

_HINT = "Delete the endpoint first, on the Serve page."


def list_in_slots(db: Session) -> Sequence[Endpoint]:
    """Return the endpoints with a process of their own, oldest first."""
    query = select(Endpoint).where(col(Endpoint.pid).is_not(None))
    return db.exec(query.order_by(col(Endpoint.id))).all()


def list_pinned(db: Session) -> Sequence[str]:
    """Return the names of the endpoints whose models the inference service keeps loaded."""
    query = select(Endpoint.name).where(
        col(Endpoint.pid).is_(None), Endpoint.state == EndpointState.READY
    )
    return db.exec(query.order_by(col(Endpoint.id))).all()


def is_busy(endpoint: Endpoint) -> bool:
    """Whether it is answering a request."""
    return endpoint.busy_until is not None and endpoint.busy_until > now()


def require_run_unused(db: Session, run_id: int) -> None:
    """Refuse to delete a run that an endpoint serves.

    Raises:
        ConflictError: One does.

    """
    name = db.exec(select(Endpoint.name).where(Endpoint.run_id == run_id)).first()
    if name is not None:
        raise ConflictError(f"Run {run_id} is served by the endpoint {name}.", hint=_HINT)


def require_export_unused(db: Session, export_id: int) -> None:
    """Refuse to delete an export that an endpoint serves.

    Raises:
        ConflictError: One does.

    """
    name = db.exec(select(Endpoint.name).where(Endpoint.export_id == export_id)).first()
    if name is not None:
        raise ConflictError(f"Export {export_id} is served by the endpoint {name}.", hint=_HINT)
