"""The outbox: notifications to deliver, and each delivery attempt."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Column, Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now


class Channel(StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"


class DeliveryStatus(StrEnum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class Delivery(SQLModel, table=True):
    """One notification for one channel, stored in the same transaction as its cause."""

    __table_args__ = (Index("ix_delivery_status_due_at", "status", "due_at"), AUTOINCREMENT)

    id: int | None = Field(default=None, primary_key=True)
    key: str = Field(unique=True)
    """The same for every attempt, so that a receiver can detect repeats."""
    channel: str
    event: str
    """The type of the event, such as `run.failed`, or `test`."""
    run_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL", index=True)
    data: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """A summary of the run at that time."""
    status: str = DeliveryStatus.WAITING
    due_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    """When to try next; during an attempt, when the attempt counts as lost."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class DeliveryAttempt(SQLModel, table=True):
    """One delivery attempt, recorded before it starts."""

    __tablename__ = "delivery_try"
    __table_args__ = (UniqueConstraint("delivery_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    delivery_id: int = Field(foreign_key="delivery.id", ondelete="CASCADE")
    number: int
    began_at: datetime = Field(sa_type=UTCDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """None during the attempt, and forever if its worker was killed."""
    words: str = ""
    """The response, as a sentence."""
