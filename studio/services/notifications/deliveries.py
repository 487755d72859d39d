"""Messages to the outside: written with what they tell of, sent later, tried again for a day.

A try is written down before it is made, and its answer after. A worker that is killed in between
leaves a try without an answer, and the message is sent again under the same key: a message may
come twice, and its receiver can tell; once an answer is written down, it never does.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlmodel import Session, col, delete, func, select, update

from studio.db.column_types import METRICS_ADAPTER
from studio.db.outbox import Channel, Delivery, DeliveryAttempt, DeliveryStatus
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import NotFoundError

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
"""How long to wait after each try that failed: nine tries over a day."""

ANSWER_TIMEOUT = timedelta(minutes=2)
"""After this a try without an answer is taken for lost: longer than any try may take."""

RETENTION = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What came of a try."""

    is_ok: bool
    words: str
    is_final: bool = False
    """Whether trying again is in vain."""


def enqueue_for_run(db: Session, run: Run, told: Mapping[str, Any]) -> None:
    """Write a message for each channel if this is where people want to be told of the run.

    Which channels there are is known to who sends them; the others' messages are dropped there.
    """
    if run.status not in NOTIFIED_STATUSES or (run.status is RunStatus.PAUSED and run.asked):
        return
    db.exec(delete(Delivery).where(col(Delivery.created_at) < datetime.now(UTC) - RETENTION))
    for channel in Channel:
        _insert_delivery(db, channel, f"run.{run.status}", run, _run_payload(run, told))


def enqueue_test(db: Session, channel: Channel) -> Delivery:
    """Write a message that says only that messages arrive. It is tried once."""
    return _insert_delivery(db, channel, TEST, None, {})


def drop_disabled_channels(db: Session, wanted: Sequence[Channel]) -> None:
    """Drop the messages for channels that nobody has set up."""
    waits = col(Delivery.status) == DeliveryStatus.WAITING
    db.exec(delete(Delivery).where(waits, col(Delivery.channel).not_in(wanted)))


def next_due(db: Session, now: datetime) -> int | None:
    """Return the message that has been due for longest, or None."""
    waits = Delivery.status == DeliveryStatus.WAITING
    query = select(Delivery.id).where(waits, col(Delivery.due_at) <= now)
    return db.exec(query.order_by(col(Delivery.due_at), col(Delivery.id)).limit(1)).first()


def begin_attempt(
    db: Session, delivery_id: int, now: datetime
) -> tuple[Delivery, DeliveryAttempt] | None:
    """Take a message that is due, and write down that it is tried. None if another has it."""
    taken = db.exec(
        update(Delivery)
        .where(
            col(Delivery.id) == delivery_id,
            col(Delivery.status) == DeliveryStatus.WAITING,
            col(Delivery.due_at) <= now,
        )
        .values(due_at=now + ANSWER_TIMEOUT)
        .returning(col(Delivery.id))
    ).first()
    if taken is None:
        return None
    made = db.exec(select(func.count()).where(DeliveryAttempt.delivery_id == delivery_id)).one()
    one = DeliveryAttempt(delivery_id=delivery_id, number=made + 1, began_at=now)
    db.add(one)
    db.flush()
    return db.get_one(Delivery, delivery_id), one


def record_result(
    db: Session, tried: DeliveryAttempt, answer: DeliveryResult, now: datetime
) -> Delivery:
    """Write down what came back, and when to try again if it must be."""
    one = db.merge(tried)
    one.ended_at, one.words = now, answer.words
    delivery = db.get_one(Delivery, tried.delivery_id)
    if answer.is_ok:
        delivery.status = DeliveryStatus.DELIVERED
    elif answer.is_final or delivery.event == TEST or one.number > len(RETRY_DELAYS):
        delivery.status = DeliveryStatus.GIVEN_UP
    elif delivery.status == DeliveryStatus.WAITING:
        delivery.due_at = now + RETRY_DELAYS[one.number - 1]
    return delivery


def get(db: Session, delivery_id: int) -> Delivery:
    found = db.get(Delivery, delivery_id)
    if found is None:
        raise NotFoundError(f"There is no delivery {delivery_id}.")
    return found


def newest(db: Session, *, limit: int, before: int | None = None) -> Sequence[Delivery]:
    query = select(Delivery).order_by(col(Delivery.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Delivery.id) < before)
    return db.exec(query).all()


def list_attempts(db: Session, found: Sequence[Delivery]) -> dict[int, list[DeliveryAttempt]]:
    """Return the tries at some deliveries, by the delivery's id, oldest first."""
    made: dict[int, list[DeliveryAttempt]] = {one.id or 0: [] for one in found}
    query = (
        select(DeliveryAttempt)
        .where(col(DeliveryAttempt.delivery_id).in_(made))
        .order_by(col(DeliveryAttempt.number))
    )
    for one in db.exec(query):
        made[one.delivery_id].append(one)
    return made


def _insert_delivery(
    db: Session, channel: Channel, event: str, run: Run | None, data: dict[str, Any]
) -> Delivery:
    made = Delivery(
        key=f"msg_{secrets.token_hex(16)}",
        channel=channel,
        event=event,
        run_id=run.id if run else None,
        data=data,
    )
    db.add(made)
    db.flush()
    return made


def _run_payload(run: Run, told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status.value,
        "attempt": run.attempt,
        "step": run.step,
        "total_steps": run.total_steps,
        "metrics": json.loads(METRICS_ADAPTER.dump_json(run.metrics)),
        "error": _error_payload(told) if run.status is RunStatus.FAILED else None,
    }


def _error_payload(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: told.get(name, "") for name in ("code", "message", "hint", "phase")}
