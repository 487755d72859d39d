"""The table of runs that are sent to trackers."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, UniqueConstraint
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now


class TrackedRun(SQLModel, table=True):
    """A run that is sent to a tracker, and how far the last process came.

    What a process that still works has sent is in the run's folder: `RunDir.trackers`.
    """

    __tablename__ = "tracked_run"
    __table_args__ = (UniqueConstraint("run_id", "key"), AUTOINCREMENT)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True, ondelete="CASCADE")
    tracker: str
    """One of `studio.trackers.table.TRACKERS`."""
    key: str
    """Its name among the places the run is sent to: the tracker, with a number from the second."""
    options: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """Where it belongs there: a `studio.trackers.contract.TrackerOptions`."""
    events_offset: int = 0
    """How many bytes of the run's events have been sent."""
    is_closed: bool = False
    """Whether the tracker knows how the run ended."""
    failures: int = 0
    """How often in a row sending has failed."""
    error: str = ""
    """Why it failed the last time."""
    hint: str = ""
    due_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    """When to send next, if there is something to send."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
