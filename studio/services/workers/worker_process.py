"""Files that pages, commands and `/health` read.

How the worker next to the web process ended, and the state of the prefork server.
"""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlmodel import Session

from studio import files
from studio.db.column_types import HOME_DIRS
from studio.processes.start_time import process_start_time
from studio.services.tasks import exit_diagnosis
from studio.services.workers import workers
from studio.settings import Settings

LauncherState = Literal["off", "loading", "ready", "broken"]


class LauncherStatus(BaseModel):
    """Whether the prefork server is ready, and the memory it uses."""

    model_config = ConfigDict(frozen=True)

    state: LauncherState = "off"
    pid: int = 0
    started: float = 0
    """Its start time in seconds since the epoch, because pids are reused."""
    why: str = ""
    """Why it is broken, in one sentence."""

    @property
    def summary(self) -> str:
        """Return its state as a short text."""
        match self.state:
            case "ready":
                return f"ready, uses {self.memory_bytes / 10**6:.0f} MB"
            case "loading":
                return "loading the training packages"
            case "broken":
                return f"not available. {self.why}"
            case "off":
                return "off"

    @property
    def memory_bytes(self) -> int:
        """The memory that ending it would free: its own and its share of shared pages."""
        with suppress(psutil.Error):
            memory = psutil.Process(self.pid).memory_full_info()
            return int(getattr(memory, "pss", memory.uss))
        return 0


def write_launcher(settings: Settings, launcher: LauncherStatus) -> None:
    files.replace_text(_launcher_path(settings), launcher.model_dump_json())


def read_launcher(settings: Settings) -> LauncherStatus:
    """Return the last written state, or "off" if that process is gone."""
    try:
        status = LauncherStatus.model_validate_json(
            _launcher_path(settings).read_text(encoding="utf-8")
        )
    except (FileNotFoundError, ValidationError):
        return LauncherStatus()
    return status if not status.pid or _is_launcher_alive(status) else LauncherStatus()


def _is_launcher_alive(status: LauncherStatus) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process_start_time(status.pid) == status.started
    return False


def _launcher_path(settings: Settings) -> Path:
    return settings.home / "launcher.json"


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
