"""The table of stored responses by idempotency key."""

from datetime import datetime

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import UTCDateTime, now


class IdempotencyKey(SQLModel, table=True):
    """The response to a request with an idempotency key, replayed if the request is repeated."""

    __tablename__ = "receipt"
    key: str = Field(primary_key=True)
    sha256: str
    """The checksum of the request's URL and body."""
    status: int
    headers: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    body: bytes
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
