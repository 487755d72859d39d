"""What is noted of requests to endpoints, and what they wait for."""

import pytest
from sqlmodel import Session

from studio.db.column_types import now
from studio.db.endpoints import Endpoint
from studio.db.states import EndpointState
from studio.errors import ConflictError
from studio.services.endpoints import endpoints, lifecycle, usage
from studio.services.models import endpoint_uses
from studio.settings import Settings
from tests.support import served_exports


@pytest.fixture
def endpoint(db: Session, settings: Settings) -> Endpoint:
    source = served_exports.add(db, settings)
    endpoint = Endpoint(
        name="pets", engine="llama.cpp", run_id=source.run_id, export_id=source.export_id
    )
    db.add(endpoint)
    db.flush()
    return endpoint


@pytest.mark.parametrize(
    "note",
    ["waiting for run 7 to end", "waiting for one of 2 runs to end", "waiting for export 3 to end"],
)
def test_work_that_keeps_its_slot_blocks(endpoint: Endpoint, note: str) -> None:
    endpoint.note = note

    assert usage.is_blocked(endpoint)


@pytest.mark.parametrize(
    "note",
    [
        "",
        "starts again in 2 s",
        "waiting for the loaded model to be unloaded",
        "waiting for the endpoint birds to finish its answers",
    ],
)
def test_slot_that_is_given_up_does_not_block(endpoint: Endpoint, note: str) -> None:
    endpoint.note = note

    assert not usage.is_blocked(endpoint)


def test_endpoint_is_busy_from_request_to_last_answer(db: Session, endpoint: Endpoint) -> None:
    lifecycle.record_ready(endpoint)
    assert usage.begin(db, "pets") is endpoint
    assert usage.begin(db, "pets") is endpoint
    assert endpoint_uses.is_busy(endpoint)

    usage.end(db, endpoint.id or 0, is_last=False)
    assert endpoint_uses.is_busy(endpoint)
    usage.end(db, endpoint.id or 0, is_last=True)
    assert not endpoint_uses.is_busy(endpoint)
    assert endpoint.requests == 2


def test_endpoint_of_killed_web_process_is_busy_for_a_minute_only(
    db: Session, endpoint: Endpoint
) -> None:
    lifecycle.record_ready(endpoint)
    usage.begin(db, "pets")
    assert endpoint.busy_until is not None

    endpoint.busy_until -= usage.BUSY_FOR
    assert not endpoint_uses.is_busy(endpoint)


def test_request_wakes_idle_endpoint(db: Session, endpoint: Endpoint) -> None:
    lifecycle.give_up_slot(endpoint, "unused")
    endpoint.idle_minutes = 5
    assert not lifecycle.may_start(endpoint)

    assert usage.begin(db, "pets") is endpoint
    assert lifecycle.may_start(endpoint)
    assert usage.take(db, endpoint.id or 0) is None
    lifecycle.record_ready(endpoint)
    assert usage.take(db, endpoint.id or 0) is endpoint


def test_endpoint_without_idle_minutes_starts_again_by_itself(endpoint: Endpoint) -> None:
    lifecycle.give_up_slot(endpoint, "gave up")

    assert lifecycle.may_start(endpoint)
    assert not lifecycle.is_asked_for(endpoint)


def test_deleted_endpoint_is_told_to_who_waits(db: Session, endpoint: Endpoint) -> None:
    endpoint_id = endpoint.id or 0
    db.delete(endpoint)
    db.flush()

    with pytest.raises(ConflictError, match="The endpoint was deleted"):
        usage.take(db, endpoint_id)
    assert usage.begin(db, "pets") is None


def test_endpoint_that_was_ready_for_long_gets_all_tries_again(endpoint: Endpoint) -> None:
    lifecycle.record_crash(endpoint, "It ended.", "")
    lifecycle.record_ready(endpoint)
    lifecycle.record_stable(endpoint)
    assert endpoint.crashes == 1

    endpoint.ready_at = now() - lifecycle.STABLE_AFTER * 2
    lifecycle.record_stable(endpoint)
    assert endpoint.crashes == 0


def test_stopped_endpoint_stays_stopped_when_its_process_ends(endpoint: Endpoint) -> None:
    endpoints.stop(endpoint)
    lifecycle.record_crash(endpoint, "It ended.", "")

    assert (endpoint.state, endpoint.crashes) == (EndpointState.STOPPED, 0)
