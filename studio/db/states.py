"""The words that a row's state is told in."""

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
        """Whether a training process belongs to it."""
        return self in LIVE


FINAL = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})
LIVE = frozenset({RunStatus.STARTING, RunStatus.RUNNING, RunStatus.STOPPING})


class RunCommand(StrEnum):
    """What a person may ask of a run that trains."""

    CANCEL = "cancel"
    PAUSE = "pause"
    KEEP = "keep"
    """Stop, and keep what it has learnt as its result."""
    DRAIN = "drain"
    """Pause and wait in the queue again: the worker is leaving."""


class TaskStatus(StrEnum):
    """Where work stands that a process of its own does: an export, a chore."""

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
    """No further run begins; those that train go on."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """A person has ended it."""
    FAILED = "failed"
    """There was nothing more to try that could run."""

    @property
    def is_final(self) -> bool:
        return self not in {SweepStatus.RUNNING, SweepStatus.PAUSED}


class DatasetStatus(StrEnum):
    DRAFT = "draft"
    """It has come; nobody has said yet how it is to be read."""
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


def text_enum(kind: type[StrEnum]) -> Enum:
    """Keep words as plain text, so that a new one needs no change of the table."""
    words = [one.value for one in kind]
    return Enum(kind, native_enum=False, length=20, values_callable=lambda _kind: words)
