"""How the worker next to the web process ended, stored in a file for pages and `/health`."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlmodel import Session

from studio import files
from studio.db.column_types import HOME_DIRS
from studio.services.tasks import exit_diagnosis
from studio.services.workers import workers
from studio.settings import Settings

FILE_NAME = "worker.json"


class WorkerExit(BaseModel):
    """How the last worker ended unexpectedly, and when the next one starts."""

    model_config = ConfigDict(frozen=True)

    reason: str
    """A sentence without confidential details."""
    words: str = ""
    """What the worker itself reported, which may contain paths; empty if it was killed."""
    deaths: int = 1
    """How many workers in a row ended soon after their start, including this one."""
    next_at: datetime

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next start; 0 while that worker is starting."""
        return max(0.0, (self.next_at - datetime.now(UTC)).total_seconds())


def write(settings: Settings, worker_exit: WorkerExit) -> None:
    with suppress(OSError):  # On a full disk, pages only report that no worker is running.
        files.replace_text(settings.home / FILE_NAME, worker_exit.model_dump_json())


def clear(settings: Settings) -> None:
    (settings.home / FILE_NAME).unlink(missing_ok=True)


def last_exit(db: Session) -> WorkerExit | None:
    """Return how the worker ended, until another one reports in."""
    return None if workers.list_alive(db) else _read(HOME_DIRS[db.get_bind().dialect] / FILE_NAME)


def _read(path: Path) -> WorkerExit | None:
    try:
        return WorkerExit.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def describe_exit(exit_code: int) -> str:
    """Describe how a worker ended."""
    name = exit_diagnosis.signal_name(exit_code)
    if name == "SIGKILL":
        return "The worker was killed (SIGKILL), by a person or because memory ran out."
    if name:
        return f"The worker was ended by a signal ({name})."
    return f"The worker exited with code {exit_code}."


def describe_start_failure(error: OSError) -> str:
    return f"The worker could not be started: {error.strerror}."
