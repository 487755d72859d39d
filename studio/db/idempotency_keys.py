"""Answers that are kept under keys."""

from datetime import datetime

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import UTCDateTime, now


class IdempotencyKey(SQLModel, table=True):
    """What was answered to a request under a key: sent again, it is answered alike."""

    __tablename__ = "receipt"
    key: str = Field(primary_key=True)
    sha256: str
    """Of what was sent, and where to."""
    status: int
    headers: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    body: bytes
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
