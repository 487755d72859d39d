"""The statuses of runs, tasks, sweeps and datasets."""

from enum import StrEnum

from sqlalchemy import Enum


class RunStatus(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL

    @property
    def is_live(self) -> bool:
        """Whether the run has a training process."""
        return self in LIVE


FINAL = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})
LIVE = frozenset({RunStatus.STARTING, RunStatus.RUNNING, RunStatus.STOPPING})


class RunCommand(StrEnum):
    """A command to a run that is training."""

    CANCEL = "cancel"
    PAUSE = "pause"
    KEEP = "keep"
    """Stop, and keep the model trained so far as the result."""
    DRAIN = "drain"
    """Pause and return to the queue, because the worker is stopping."""


class TaskStatus(StrEnum):
    """The status of an export or a task."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in {TaskStatus.QUEUED, TaskStatus.RUNNING}


class SweepStatus(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    """No further runs start; active runs continue."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """A user stopped it."""
    FAILED = "failed"
    """None of the remaining combinations could run."""

    @property
    def is_final(self) -> bool:
        return self not in {SweepStatus.RUNNING, SweepStatus.PAUSED}


class EndpointState(StrEnum):
    """The state of an endpoint."""

    STARTING = "starting"
    """It starts, or waits for a slot or for its next try."""
    READY = "ready"
    IDLE = "idle"
    """It gave its slot up, and starts again on the next request."""
    FAILING = "failing"
    """It ended too often; it stays down until somebody starts it."""
    STOPPED = "stopped"


class DatasetStatus(StrEnum):
    DRAFT = "draft"
    """The file is uploaded, but its mapping is not confirmed yet."""
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


def text_enum(kind: type[StrEnum]) -> Enum:
    """Return a column type that stores values as text, so that new values need no migration."""
    values = [member.value for member in kind]
    return Enum(kind, native_enum=False, length=20, values_callable=lambda _kind: values)
