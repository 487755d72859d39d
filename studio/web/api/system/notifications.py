"""REST routes of notifications: channels, deliveries and their attempts."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from studio.db.outbox import Channel, Delivery, DeliveryStatus
from studio.db.outbox import DeliveryAttempt as TryRow
from studio.services.notifications import deliveries
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import After, Body, Id, Listing, Out, make_page
from studio.web.http.deps import DB, ConfigWithSecrets

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["notifications"])


class NotificationChannelOut(Out):
    channel: Channel
    is_on: bool
    goes_to: str
    """The destination, without secrets."""
    note: str
    how: str
    """What the operator must configure to enable it."""


class DeliveryAttemptOut(Out):
    number: int
    began_at: datetime
    ended_at: datetime | None
    """Null while in progress, and permanently if the worker was killed during it."""
    words: str
    """The receiver's response."""


class DeliveryOut(Out):
    id: int
    key: str
    """The `webhook-id` sent to the receiver."""
    channel: Channel
    event: str
    """`run.succeeded`, `run.failed`, `run.cancelled`, `run.paused` or `test`."""
    run_id: int | None
    status: DeliveryStatus
    due_at: datetime
    created_at: datetime
    tries: list[DeliveryAttemptOut]


class NewTest(Body):
    channel: Annotated[Channel, Field(strict=False)]


@router.get("/notifications")
def ways(config: ConfigWithSecrets) -> Listing[NotificationChannelOut]:
    """List the notification channels as the operator has configured them."""
    items = [
        NotificationChannelOut.model_validate(channel)
        for channel in deliveries.list_channels(config)
    ]
    return Listing.complete(items)


@router.get("/deliveries")
def newest(
    db: DB, after: After = None, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> Listing[DeliveryOut]:
    rows = deliveries.newest(db, limit=limit + 1, before=after)
    attempts = deliveries.list_attempts(db, rows)
    return make_page(rows, limit, [_delivery_out(row, attempts[row.id or 0]) for row in rows])


@router.get("/deliveries/{delivery_id}")
def show(delivery_id: Id, db: DB) -> DeliveryOut:
    delivery = deliveries.get(db, delivery_id)
    return _delivery_out(delivery, deliveries.list_attempts(db, [delivery])[delivery_id])


@router.post("/deliveries/test", status_code=202)
def test(new: NewTest, db: DB, config: ConfigWithSecrets) -> DeliveryOut:
    """Send a test message through a channel."""
    return _delivery_out(deliveries.send_test(db, config, new.channel), [])


def _delivery_out(delivery: Delivery, tries: list[TryRow]) -> DeliveryOut:
    return DeliveryOut.model_validate(delivery.model_dump() | {"tries": tries})
