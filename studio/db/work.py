"""What the row of any work tells that a process of its own does, in a folder, with events."""

from datetime import UTC, datetime

from sqlmodel import Field, SQLModel

from studio.db.columns import Instant
from studio.db.states import WorkStatus, plain


def _now() -> datetime:
    return datetime.now(UTC)


class Work(SQLModel):
    """Where a piece of work stands. What it is for, the table that has these columns says."""

    id: int | None = Field(default=None, primary_key=True)
    status: WorkStatus = Field(default=WorkStatus.QUEUED, sa_type=plain(WorkStatus))
    attempt: int = 0
    """How often a process was made for it."""
    pid: int | None = None
    pid_started: float | None = None
    gpu: int | None = None
    events_offset: int = 0
    phase: str = ""
    share: float = 0
    """How much of the work is done."""
    error_code: str = ""
    error_message: str = ""
    error_hint: str = ""
    created_at: datetime = Field(default_factory=_now, sa_type=Instant)
    finished_at: datetime | None = Field(default=None, sa_type=Instant)
