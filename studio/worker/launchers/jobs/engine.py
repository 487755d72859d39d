"""What the launcher of jobs asks of a cluster's engine: Slurm or Ray."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from studio.errors import InvalidError, UnavailableError
from studio.services.tasks.exit_diagnosis import ProcessExit


class EngineAwayError(UnavailableError):
    """The engine did not answer, so nothing is known of its jobs."""


class JobRefusedError(InvalidError):
    """The engine will never run this job as it is."""


class JobState(Enum):
    WAITING = "waiting"
    """Not on a machine, or suspended."""
    RUNNING = "running"
    """As far as the engine knows, which may be wrong for a while after a machine's death."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class EngineJob:
    """What the engine says of a job."""

    state: JobState
    reason: str = ""
    """Why it waits or how it ended, in the engine's own words."""
    end: ProcessExit = field(default_factory=ProcessExit)
    """How it ended, as far as the engine knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job to submit."""

    name: str
    """Unique to an attempt of a run of a home."""
    command: Sequence[str]
    log: Path
    """Where the job's output is appended, if the engine can."""


def decode_exit(status: int) -> int:
    """Return an exit code that tells a signal as shells do, as the signal's negative number."""
    return _SHELL_SIGNALS - status if status > _SHELL_SIGNALS else status


_SHELL_SIGNALS = 128


class Engine(Protocol):
    """A cluster's engine. Its methods block, and are called from one thread at a time."""

    @property
    def title(self) -> str:
        """What people call it."""

    def check(self) -> None:
        """Check that the engine can be used as it is set up.

        Raises:
            StudioError: it cannot; the message and the hint say what to change.

        """

    def find(self, names: Collection[str]) -> Mapping[str, EngineJob]:
        """Return the jobs with these names; those that the engine does not know are missing.

        Raises:
            EngineAwayError: it does not answer.

        """

    def submit(self, request: JobRequest) -> None:
        """Submit a job; does nothing if the engine knows one with this name and can tell.

        Raises:
            JobRefusedError: the engine refuses it.
            EngineAwayError: it does not answer; the job may have been submitted.

        """

    def cancel(self, name: str, *, only_waiting: bool = False) -> None:
        """End a job at once; `only_waiting` leaves alone one that has started.

        Raises:
            EngineAwayError: the engine does not answer.

        """
