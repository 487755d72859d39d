"""Monitor one attempt: request a stop, wait for it, and kill it if it hangs."""

import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sqlalchemy import Engine

from studio import files
from studio.db.session import unit_of_work
from studio.db.states import RunCommand
from studio.errors import NotFoundError
from studio.protocols.events import Failed
from studio.protocols.run_dir import RunDir, WorkDir
from studio.services.runs import artifacts, attempts
from studio.services.runs.attempts import AttemptOwner, LeaseLostError
from studio.services.tasks import exit_diagnosis
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.launchers.protocol import Launcher

log = logging.getLogger(__name__)

STACK_DUMP_SECONDS = 2.0
"""How long a hung process gets to write its stacks to its log."""

_LOG_TAIL_LINES = 20
_FULL_DISK_BYTES = 64 * 1024
"""A disk with less free space than this counts as full: some blocks may be left over."""


@dataclass(slots=True)
class MonitoredAttempt:
    owner: AttemptOwner
    handle: str
    folder: RunDir
    gpu: int | None = None
    is_hung: bool = False
    failure: Failed | None = None
    """Why the attempt can no longer be monitored; it is killed."""
    kills: int = 0
    """How many ticks it has been killed for."""
    stored_at: float = 0.0
    """When its events were last stored, or could not be."""
    waits_for: str | None = None
    """What it was last seen to wait for before it starts."""
    _requested: RunCommand | None = None
    _requested_at: float = 0.0
    _size: int = -1
    _last_output_at: float = field(default_factory=time.monotonic)

    def request(self, command: RunCommand, launcher: Launcher, settings: Settings) -> None:
        """Send each request once; kill the attempt when its grace period is over."""
        now = time.monotonic()
        if command is not self._requested:
            written_command = RunCommand.PAUSE if command is RunCommand.DRAIN else command
            files.replace_text(self.folder.command, written_command.value)
            launcher.stop(self.handle)
            self._requested, self._requested_at = command, now
            return
        is_quick = command is RunCommand.CANCEL
        grace = settings.stop_grace_seconds if is_quick else settings.save_grace_seconds
        if now - self._requested_at > grace:
            launcher.kill(self.handle)

    def add_evidence(self, end: ProcessExit) -> ProcessExit:
        """Add what the attempt's folder and its log's last lines reveal about how it ended."""
        return replace(add_exit_evidence(self.folder, end), hung=self.is_hung)

    def check_hang(self, launcher: Launcher, limit: float) -> None:
        """Kill an attempt without output for too long, after dumping its stacks to its log."""
        now, size = time.monotonic(), _output_bytes(self.folder)
        if size != self._size or launcher.waits_for(self.handle) is not None:
            self._size, self._last_output_at = size, now
        elif now - self._last_output_at > limit + STACK_DUMP_SECONDS:
            launcher.kill(self.handle)
        elif now - self._last_output_at > limit and not self.is_hung:
            self.is_hung = True
            log.warning("run_hung", extra={"folder": str(self.folder.root)})
            launcher.dump_stacks(self.handle)


def record_waits(
    engine: Engine, launcher: Launcher, monitored: Mapping[int, MonitoredAttempt]
) -> None:
    """Note in the rows of runs what each waits for before it starts, if that has changed."""
    for run_id, attempt in monitored.items():
        reason = launcher.waits_for(attempt.handle)
        if reason is not None and reason != attempt.waits_for:
            with suppress(NotFoundError, LeaseLostError), unit_of_work(engine) as db:
                attempts.require_owned(db, run_id, attempt.owner).phase = f"waiting: {reason}"
        attempt.waits_for = reason


def has_new_events(folder: WorkDir, offset: int) -> bool:
    """Whether the process has written events after a byte offset.

    Raises:
        FilesLostError: the folder is gone, or the events before the offset are.

    """
    if not folder.root.is_dir():
        raise exit_diagnosis.folder_lost_error()
    path = folder.events.path
    size = path.stat().st_size if path.exists() else 0
    if size < offset:
        raise exit_diagnosis.events_lost_error(path.name)
    return size > offset


def add_exit_evidence(folder: WorkDir, end: ProcessExit) -> ProcessExit:
    """Add what the folder and the log's last lines reveal about how a process ended."""
    log_lines: list[str] = []
    with suppress(OSError):
        log_lines = artifacts.read_log(folder.log, None, _LOG_TAIL_LINES).lines
    existing_folder = next(path for path in (folder.root, *folder.root.parents) if path.is_dir())
    return replace(
        end,
        disk_full=shutil.disk_usage(existing_folder).free < _FULL_DISK_BYTES,
        last_line=next((line for line in reversed(log_lines) if line.strip()), "").strip(),
    )


def _output_bytes(folder: RunDir) -> int:
    """Return how much the process has written to its events and its log, in bytes."""
    paths = (folder.events.path, folder.log)
    return sum(path.stat().st_size for path in paths if path.exists())
