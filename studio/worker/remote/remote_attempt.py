"""One attempt on this machine: what is known of it, its process, and what the studio wants of it.

<home>/remote-runs/<run>/remote.json   survives the worker
"""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from studio import files
from studio.db.states import RunCommand
from studio.protocols.remote_worker import Assignment, AttemptRef, LaunchFailure
from studio.protocols.run_dir import RunDir
from studio.services.runs.attempts import AttemptOwner
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.attempt_monitor import MonitoredAttempt
from studio.worker.processes.launcher import LocalLauncher

_FILE = "remote.json"


class AttemptRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    assignment: Assignment
    log_offset: int = 0
    """How long the studio's log was before the attempt."""
    is_prepared: bool = False
    """Whether all its input files are here."""
    handle: str = ""
    """The launcher's handle of its process; empty if it may not have been started."""


@dataclass(slots=True)
class RemoteAttempt:
    """Shared by the worker's loop, which watches the process, and a courier, which starts it."""

    worker: str
    folder: RunDir
    record: AttemptRecord
    process: MonitoredAttempt | None = None
    """None until it is launched."""
    exit: ProcessExit | None = None
    """How its process ended; None until then."""
    failure: LaunchFailure | None = None
    command: RunCommand | None = None
    """What the studio asks for."""
    is_fenced: bool = False
    is_over: bool = False
    """Whether the studio has heard of its end."""
    wake: threading.Event = field(default_factory=threading.Event)
    """Set when its courier need not wait any longer."""

    @property
    def ref(self) -> AttemptRef:
        assignment = self.record.assignment
        return AttemptRef(run_id=assignment.run_id, attempt=assignment.attempt)

    @property
    def is_wanted(self) -> bool:
        """Whether it is still to be launched."""
        return not self.is_fenced and self.command is None

    def save(self, **changes: str | int | bool) -> None:
        """Change the record, also on disk."""
        self.record = self.record.model_copy(update=changes)
        self.folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace_text(self.folder.root / _FILE, self.record.model_dump_json())

    def set_process(self, handle: str) -> None:
        """Have the worker's loop watch a process."""
        self.save(handle=handle)
        owner = AttemptOwner(self.worker, self.record.assignment.attempt)
        self.process = MonitoredAttempt(owner, handle, self.folder, self.record.assignment.gpu)

    def watch(self, launcher: LocalLauncher, settings: Settings) -> None:
        """Notice that its process has ended; pass on what the studio asks for."""
        if self.process is None or self.exit is not None:
            return
        if self.is_fenced:
            launcher.kill(self.process.handle)
        if (ended := launcher.poll(self.process.handle)) is not None:
            self.exit = self.process.add_evidence(ended)
            self.wake.set()
        elif self.command is not None:
            self.process.request(self.command, launcher, settings)
        else:
            self.process.check_hang(launcher, settings.hang_seconds)

    def delete(self) -> None:
        """Delete its folder: the studio has everything, or wants nothing of it."""
        shutil.rmtree(self.folder.root, ignore_errors=True)


def runs_folder(settings: Settings) -> Path:
    """Return where runs of a studio elsewhere are; a home may also be that of a studio here."""
    return settings.home / "remote-runs"


def run_dir(settings: Settings, run_id: int) -> RunDir:
    return RunDir(runs_folder(settings) / str(run_id))


def find_left(settings: Settings, worker: str) -> Iterator[RemoteAttempt]:
    """Yield the attempts that an earlier worker of this home has left; delete what is none."""
    for path in sorted(runs_folder(settings).glob("*")):
        try:
            text = (path / _FILE).read_text(encoding="utf-8")
            record = AttemptRecord.model_validate_json(text)
        except (OSError, ValidationError):
            shutil.rmtree(path, ignore_errors=True)
            continue
        yield RemoteAttempt(worker, RunDir(path), record)
