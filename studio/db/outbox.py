"""The outbox: what is to be told to the outside, and each try to tell it."""

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
    """One message for one channel. It is stored with what it tells of, or neither is."""

    __table_args__ = (Index("ix_delivery_status_due_at", "status", "due_at"), AUTOINCREMENT)

    id: int | None = Field(default=None, primary_key=True)
    key: str = Field(unique=True)
    """The same on every try, so that a receiver can tell a repeat."""
    channel: str
    event: str
    """What it tells, as `run.failed`; or `test`."""
    run_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL", index=True)
    data: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """The run in brief, as it was at that moment."""
    status: str = DeliveryStatus.WAITING
    due_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    """When to try next; while a try goes on, when it is taken for lost."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class DeliveryAttempt(SQLModel, table=True):
    """One try at a delivery, written down before it is made."""

    __tablename__ = "delivery_try"
    __table_args__ = (UniqueConstraint("delivery_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    delivery_id: int = Field(foreign_key="delivery.id", ondelete="CASCADE")
    number: int
    began_at: datetime = Field(sa_type=UTCDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """None while it goes on, and for ever if its worker was killed meanwhile."""
    words: str = ""
    """What came back, as a sentence."""
