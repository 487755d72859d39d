"""The state of the prefork server, which the worker writes for pages and commands."""

from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from studio import files
from studio.processes.start_time import process_start_time
from studio.settings import Settings

State = Literal["off", "loading", "ready", "broken"]


class LauncherStatus(BaseModel):
    """Whether the prefork server is ready, and the memory it uses."""

    model_config = ConfigDict(frozen=True)

    state: State = "off"
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


def write(settings: Settings, launcher: LauncherStatus) -> None:
    files.replace_text(_path(settings), launcher.model_dump_json())


def read(settings: Settings) -> LauncherStatus:
    """Return the last written state, or "off" if that process is gone."""
    try:
        status = LauncherStatus.model_validate_json(_path(settings).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return LauncherStatus()
    return status if not status.pid or _is_alive(status) else LauncherStatus()


def _is_alive(status: LauncherStatus) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process_start_time(status.pid) == status.started
    return False


def _path(settings: Settings) -> Path:
    return settings.home / "launcher.json"
