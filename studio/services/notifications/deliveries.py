"""Outgoing messages: stored with the change they report, sent later, and retried for a day.

An attempt is stored before it is made, and its response after. If a worker is killed in between,
the attempt has no response, and the message is sent again with the same key: a message may arrive
twice, and its receiver can tell; after a stored response, it is never sent again. The operator
configures the channels.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from sqlmodel import Session, col, delete, func, select, update

from studio.db.column_types import METRICS_ADAPTER
from studio.db.outbox import Channel, Delivery, DeliveryAttempt, DeliveryStatus
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError, NotFoundError
from studio.network import safe_http
from studio.settings import Settings

NOTIFIED_STATUSES = frozenset(
    {RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PAUSED}
)
TEST = "test"

RETRY_DELAYS = tuple(
    timedelta(**{unit: count})
    for count, unit in (
        (5, "seconds"),
        (1, "minutes"),
        (5, "minutes"),
        (30, "minutes"),
        (2, "hours"),
        (5, "hours"),
        (8, "hours"),
        (8, "hours"),
    )
)
"""Delays after each failed attempt: nine attempts over a day."""

ANSWER_TIMEOUT = timedelta(minutes=2)
"""After this, an attempt without a response counts as lost: longer than any attempt takes."""

RETENTION = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of an attempt."""

    is_ok: bool
    words: str
    is_final: bool = False
    """Whether a retry is pointless."""


def enqueue_for_run(db: Session, run: Run, details: Mapping[str, Any]) -> None:
    """Store a message about a run's status for each channel, if the status is notified.

    Only the sender knows which channels are set up; it drops the messages of the others.
    """
    if run.status not in NOTIFIED_STATUSES or (run.status is RunStatus.PAUSED and run.asked):
        return
    db.exec(delete(Delivery).where(col(Delivery.created_at) < datetime.now(UTC) - RETENTION))
    for channel in Channel:
        _insert_delivery(db, channel, f"run.{run.status}", run, _run_payload(run, details))


def enqueue_test(db: Session, channel: Channel) -> Delivery:
    """Store a test message. It is attempted once."""
    return _insert_delivery(db, channel, TEST, None, {})


def drop_disabled_channels(db: Session, channels: Sequence[Channel]) -> None:
    """Delete the messages for channels that are not set up."""
    waits = col(Delivery.status) == DeliveryStatus.WAITING
    db.exec(delete(Delivery).where(waits, col(Delivery.channel).not_in(channels)))


def next_due(db: Session, now: datetime) -> int | None:
    """Return the id of the message that has been due for longest, or None."""
    waits = Delivery.status == DeliveryStatus.WAITING
    query = select(Delivery.id).where(waits, col(Delivery.due_at) <= now)
    return db.exec(query.order_by(col(Delivery.due_at), col(Delivery.id)).limit(1)).first()


def begin_attempt(
    db: Session, delivery_id: int, now: datetime
) -> tuple[Delivery, DeliveryAttempt] | None:
    """Claim a due message, and store the attempt. None if another worker claimed it."""
    claimed = db.exec(
        update(Delivery)
        .where(
            col(Delivery.id) == delivery_id,
            col(Delivery.status) == DeliveryStatus.WAITING,
            col(Delivery.due_at) <= now,
        )
        .values(due_at=now + ANSWER_TIMEOUT)
        .returning(col(Delivery.id))
    ).first()
    if claimed is None:
        return None
    attempt_count = db.exec(
        select(func.count()).where(DeliveryAttempt.delivery_id == delivery_id)
    ).one()
    attempt = DeliveryAttempt(delivery_id=delivery_id, number=attempt_count + 1, began_at=now)
    db.add(attempt)
    db.flush()
    return db.get_one(Delivery, delivery_id), attempt


def record_result(
    db: Session, attempt: DeliveryAttempt, answer: DeliveryResult, now: datetime
) -> Delivery:
    """Store the result of an attempt, and schedule a retry if needed."""
    stored_attempt = db.merge(attempt)
    stored_attempt.ended_at, stored_attempt.words = now, answer.words
    delivery = db.get_one(Delivery, attempt.delivery_id)
    if answer.is_ok:
        delivery.status = DeliveryStatus.DELIVERED
    elif answer.is_final or delivery.event == TEST or stored_attempt.number > len(RETRY_DELAYS):
        delivery.status = DeliveryStatus.GIVEN_UP
    elif delivery.status == DeliveryStatus.WAITING:
        delivery.due_at = now + RETRY_DELAYS[stored_attempt.number - 1]
    return delivery


def get(db: Session, delivery_id: int) -> Delivery:
    delivery = db.get(Delivery, delivery_id)
    if delivery is None:
        raise NotFoundError(f"Delivery {delivery_id} does not exist.")
    return delivery


def newest(db: Session, *, limit: int, before: int | None = None) -> Sequence[Delivery]:
    query = select(Delivery).order_by(col(Delivery.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Delivery.id) < before)
    return db.exec(query).all()


def list_attempts(
    db: Session, delivery_rows: Sequence[Delivery]
) -> dict[int, list[DeliveryAttempt]]:
    """Return the attempts of deliveries, by delivery id, oldest first."""
    attempts: dict[int, list[DeliveryAttempt]] = {one.id or 0: [] for one in delivery_rows}
    query = (
        select(DeliveryAttempt)
        .where(col(DeliveryAttempt.delivery_id).in_(attempts))
        .order_by(col(DeliveryAttempt.number))
    )
    for one in db.exec(query):
        attempts[one.delivery_id].append(one)
    return attempts


def _insert_delivery(
    db: Session, channel: Channel, event: str, run: Run | None, data: dict[str, Any]
) -> Delivery:
    delivery = Delivery(
        key=f"msg_{secrets.token_hex(16)}",
        channel=channel,
        event=event,
        run_id=run.id if run else None,
        data=data,
    )
    db.add(delivery)
    db.flush()
    return delivery


def _run_payload(run: Run, details: Mapping[str, Any]) -> dict[str, Any]:
    error = {name: details.get(name, "") for name in ("code", "message", "hint", "phase")}
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status.value,
        "attempt": run.attempt,
        "step": run.step,
        "total_steps": run.total_steps,
        "metrics": json.loads(METRICS_ADAPTER.dump_json(run.metrics)),
        "error": error if run.status is RunStatus.FAILED else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """The configuration of one channel, as shown to users."""

    channel: Channel
    title: str
    is_on: bool
    goes_to: str
    """The destination, without secrets; empty if it is off."""
    note: str = ""
    """A remark on its configuration."""
    how: str
    """How to set it up."""


SECRET_SETTINGS = ("webhook_url", "webhook_secret", "smtp_url")
"""The settings of channels that are secret."""


def list_enabled(settings: Settings) -> tuple[Channel, ...]:
    """Return the channels that are set up."""
    return tuple(status.channel for status in list_channels(settings) if status.is_on)


def list_channels(settings: Settings) -> tuple[ChannelStatus, ...]:
    return (_webhook(settings), _email(settings))


def send_test(db: Session, settings: Settings, channel: Channel) -> Delivery:
    """Queue a test message.

    Raises:
        ConflictError: The channel is not set up.

    """
    status = next(status for status in list_channels(settings) if status.channel is channel)
    if not status.is_on:
        raise ConflictError(f"{status.title} is not set up.", hint=f"Set {status.how}.")
    return enqueue_test(db, channel)


def _webhook(settings: Settings) -> ChannelStatus:
    url = settings.webhook_url.get_secret_value()
    notes = []
    if url and not settings.webhook_secret.get_secret_value():
        notes.append("Unsigned: set STUDIO_WEBHOOK_SECRET.")
    if url and settings.allow_internal_addresses:
        notes.append("Internal addresses are allowed.")
    return ChannelStatus(
        channel=Channel.WEBHOOK,
        title="Webhook",
        is_on=bool(url),
        goes_to=safe_http.redact_url(url) if url else "",
        note=" ".join(notes),
        how="STUDIO_WEBHOOK_URL and STUDIO_WEBHOOK_SECRET",
    )


def _email(settings: Settings) -> ChannelStatus:
    url = settings.smtp_url.get_secret_value()
    is_on = bool(url and settings.notify_email)
    host = urlsplit(url).hostname
    return ChannelStatus(
        channel=Channel.EMAIL,
        title="Email",
        is_on=is_on,
        goes_to=f"{settings.notify_email}, sent through {host}" if is_on else "",
        note=""
        if is_on or not (url or settings.notify_email)
        else "Only one of the two settings is set.",
        how="STUDIO_SMTP_URL and STUDIO_NOTIFY_EMAIL",
    )
