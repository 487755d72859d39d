"""What the warm launcher is doing, as the worker wrote it down for pages and commands to tell."""

from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from studio.processes.start_time import process_start_time
from studio.settings import Settings

State = Literal["off", "loading", "ready", "broken"]


class LauncherStatus(BaseModel):
    """Whether runs start at once, and what that costs."""

    model_config = ConfigDict(frozen=True)

    state: State = "off"
    pid: int = 0
    started: float = 0
    """When that process began, in seconds since the epoch: a pid alone may be reused."""
    why: str = ""
    """Why it is broken, in a sentence."""

    @property
    def summary(self) -> str:
        """Say in a few words how a run starts now."""
        match self.state:
            case "ready":
                return f"ready, holds {self.memory_bytes / 10**6:.0f} MB"
            case "loading":
                return "loading the training packages"
            case "broken":
                return f"not usable now. {self.why}"
            case "off":
                return "off"

    @property
    def memory_bytes(self) -> int:
        """The memory that would be free without it: its own, and its share of what others use."""
        with suppress(psutil.Error):
            memory = psutil.Process(self.pid).memory_full_info()
            return int(getattr(memory, "pss", memory.uss))
        return 0


def write(settings: Settings, launcher: LauncherStatus) -> None:
    path = _path(settings)
    new = path.with_suffix(".new")
    new.write_text(launcher.model_dump_json(), encoding="utf-8")
    new.replace(path)


def read(settings: Settings) -> LauncherStatus:
    """Return what the worker wrote last, or that there is none if its process is gone."""
    try:
        told = LauncherStatus.model_validate_json(_path(settings).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return LauncherStatus()
    return told if not told.pid or _is_alive(told) else LauncherStatus()


def _is_alive(told: LauncherStatus) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process_start_time(told.pid) == told.started
    return False


def _path(settings: Settings) -> Path:
    return settings.home / "launcher.json"
