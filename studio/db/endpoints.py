"""The table of endpoints: models that are served under a name of their own."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now
from studio.db.owners import owner_column
from studio.db.states import EndpointState, text_enum


class Endpoint(SQLModel, table=True):
    """A model that an engine serves under a name."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    """What programs send as `model`."""
    engine: str
    """One of `studio.engines.ENGINES`."""
    run_id: int = Field(foreign_key="run.id", index=True, ondelete="CASCADE")
    """The run that trained the model."""
    step: int | None = None
    """The step of its checkpoint that is served; None for its result or an export."""
    export_id: int | None = Field(
        default=None, foreign_key="export.id", index=True, ondelete="CASCADE"
    )
    """The export that is served; None for the run's own files."""
    idle_minutes: int | None = None
    """After how many minutes without a request it gives its slot up; None for never."""
    is_wanted: bool = True
    """Whether it is to be there: somebody started it and has not stopped it."""
    state: EndpointState = Field(default=EndpointState.STARTING, sa_type=text_enum(EndpointState))
    note: str = ""
    """What it waits for, while it is starting or idle, as text."""
    error_message: str = ""
    """Why it ended last time, as text; empty if all is well."""
    error_hint: str = ""
    crashes: int = 0
    """How often in a row its process ended by itself."""
    port: int | None = None
    locked_key: str = ""
    """The key that its process asks for, encrypted; empty without a process of its own."""
    pid: int | None = None
    pid_started: float | None = None
    gpu: int | None = None
    requests: int = 0
    """How many requests it was sent."""
    requested_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When a request came that found it not ready; None once it is."""
    last_used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    busy_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """Until when it counts as answering; extended while an answer is being written."""
    ready_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """Since when it is ready; None while it is not."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    owner_id: int | None = owner_column()
