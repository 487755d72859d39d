"""A courier brings the files of one attempt here, launches it, and sends what it writes.

Events are sent in their order. An event that implies files, such as a checkpoint's or the last one,
is sent after they have arrived. Training never waits for it.
"""

import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from studio.client.errors import ApiError
from studio.errors import StudioError
from studio.protocols import grader_judges
from studio.protocols.events import Checkpointed, Event, Finished, Paused, Stopped
from studio.protocols.remote_worker import (
    CHUNK_BYTES,
    AttemptEnd,
    FolderRequest,
    LaunchFailure,
    MissingFile,
    RemoteFile,
    Stream,
)
from studio.protocols.run_dir import JobSpec
from studio.services.remote.run_files import hash_file
from studio.services.runs import artifacts, run_dirs
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.fault_isolation import catch_errors
from studio.worker.processes import process
from studio.worker.processes.launcher import LaunchSpec, LocalLauncher
from studio.worker.remote.connection import (
    Backoff,
    FencedError,
    FilePart,
    StudioAwayError,
    StudioConnection,
    is_denied,
)
from studio.worker.remote.inputs import InputCache, RunLayout
from studio.worker.remote.remote_attempt import RemoteAttempt

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
"""How often new events are looked for."""

_END_FACTS = AttemptEnd.model_fields.keys()
_LAST_LINE_CHARACTERS = 2000
_COPIES = "sent"


class _InterruptedError(Exception):
    """The worker stops, or the attempt is no longer wanted."""


@dataclass(slots=True)
class Courier:
    connection: StudioConnection
    attempt: RemoteAttempt
    launcher: LocalLauncher
    settings: Settings
    stop: threading.Event
    thread: threading.Thread = field(init=False)
    _events_offset: int | None = None
    """How much of the events the studio has; None until it was asked."""
    _log_offset: int | None = None
    _backoff: Backoff = field(default_factory=Backoff)
    _sent_versions: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = f"courier-{self.attempt.ref.run_id}"
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def run(self) -> None:
        """Work until the studio has heard of the attempt's end, or the worker stops."""
        attempt = self.attempt
        while not (self.stop.is_set() or attempt.is_over or attempt.is_fenced):
            with catch_errors() as errors:
                self._advance()
                self._backoff.reset()
            for error in errors:
                self._note(error)
                if not attempt.is_fenced:
                    self._backoff.wait(self.stop)
            if not errors and not attempt.is_over:
                attempt.wake.wait(IDLE_SECONDS)

    def _note(self, error: Exception) -> None:
        """Decide what an error means for the attempt."""
        attempt, facts = self.attempt, {"run_id": self.attempt.ref.run_id, "reason": str(error)}
        if isinstance(error, FencedError):
            attempt.is_fenced = True
            log.warning("attempt_fenced", extra=facts)
        elif isinstance(error, (_InterruptedError, StudioAwayError)) or is_denied(error):
            log.info("courier_waits", extra=facts)
        elif attempt.process is None and isinstance(error, (StudioError, OSError)):
            self._fail(run_dirs.launch_error(error))
        elif isinstance(error, ApiError):
            self.launcher.kill(attempt.process.handle if attempt.process else "0@0@")
            self._fail(error)
        else:
            log.error("courier_failed", extra=facts, exc_info=error)

    def _fail(self, error: StudioError) -> None:
        log.error("attempt_failed", extra={"run_id": self.attempt.ref.run_id, "why": str(error)})
        self.attempt.failure = LaunchFailure(
            code=error.code[:60],
            message=error.message[:_LAST_LINE_CHARACTERS],
            hint=error.hint[:_LAST_LINE_CHARACTERS],
        )
        self.attempt.exit = self.attempt.exit or ProcessExit()

    def _advance(self) -> None:
        """Do what comes next."""
        attempt = self.attempt
        if attempt.failure is not None:
            self._end(attempt.exit or ProcessExit())
            return
        if attempt.process is None and attempt.exit is None:
            if not attempt.is_wanted:
                attempt.exit = ProcessExit()
            else:
                self._prepare()
                self._launch()
        # Look at the exit before the files: a process writes its last event before it exits.
        ended = attempt.exit
        while self._send_events():
            pass
        while self._send_log():
            pass
        if ended is not None:
            self._end(ended)

    def _check(self) -> None:
        if self.stop.is_set() or self.attempt.is_fenced:
            raise _InterruptedError

    def _check_wanted(self) -> None:
        self._check()
        if not self.attempt.is_wanted:
            raise _InterruptedError

    def _prepare(self) -> None:
        attempt = self.attempt
        if attempt.record.is_prepared:
            return
        needed = self.connection.list_files(attempt.ref)
        cache = InputCache(self.settings.cache / "inputs", self.connection)
        layout = RunLayout(attempt.folder, self.settings, cache)
        layout.write(attempt.ref, needed, self._check_wanted)
        attempt.save(is_prepared=True, log_offset=needed.log_offset)

    def _launch(self) -> None:
        self._check_wanted()
        spec = launch_spec(self.attempt, self.settings)
        self.attempt.set_process(self.launcher.submit(spec))
        log.info("run_launched", extra={"run_id": spec.run_id, "attempt": spec.attempt})

    def _send_events(self) -> bool:
        """Send the next events, after the files that the first of them implies.

        Return whether there may be more.
        """
        log_file = self.attempt.folder.events
        if self._events_offset is None:
            self._events_offset = self.connection.append(self.attempt.ref, "events", 0, b"").offset
        start = end = self._events_offset
        for line_end, event in log_file.read_chunk(start, CHUNK_BYTES):
            if event is not None and _implies_files(event):
                if end > start:
                    break
                self._send_files(event)
            end = line_end
        if end == start:
            return False
        self._events_offset = self._append("events", log_file.path, start, end)
        return True

    def _send_log(self) -> bool:
        path, before = self.attempt.folder.log, self.attempt.record.log_offset
        if self._log_offset is None:
            known = self.connection.append(self.attempt.ref, "log", 0, b"").offset
            self._log_offset = max(0, known - before)
        size = path.stat().st_size if path.exists() else 0
        if size <= self._log_offset:
            return False
        self._log_offset = self._append("log", path, self._log_offset, size, before)
        return True

    def _append(self, name: Stream, path: Path, start: int, end: int, before: int = 0) -> int:
        """Send a part of a file; return how much of the file the studio has then.

        `before` is how much the studio had before the attempt.
        """
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(min(end - start, CHUNK_BYTES))
        answer = self.connection.append(self.attempt.ref, name, before + start, data)
        self._backoff.reset()
        return max(0, answer.offset - before)

    def _send_files(self, event: Event) -> None:
        folder = self.attempt.folder
        if isinstance(event, Checkpointed):
            name = f"checkpoint-{event.step}"
            self._send_folder(f"checkpoints/{name}", folder.checkpoints / name)
        if isinstance(event, Finished) or (isinstance(event, Stopped) and event.kept):
            self._send_folder("artifacts", folder.artifacts)
        self._send_folder("tokenizer", folder.tokenizer)
        self._send_folder(folder.adapter_start.name, folder.adapter_start)
        if folder.rollouts.is_file():
            # The run writes on, and the copy does not change while it is sent.
            copy = folder.root / _COPIES / folder.rollouts.name
            copy.parent.mkdir(exist_ok=True)
            shutil.copy2(folder.rollouts, copy)
            self._send_folder(copy.name, copy)

    def _send_folder(self, name: str, root: Path) -> None:
        """Send a folder, or one file, unless it is not there or the studio has it."""
        paths = dict(_list_files(root))
        version = [_version(path, file) for path, file in sorted(paths.items())]
        if not paths or version == self._sent_versions.get(name):
            return
        try:
            self._place(name, paths)
        except FileNotFoundError:
            if name.startswith("checkpoints/"):
                return  # A newer checkpoint has replaced it meanwhile.
            raise
        self._sent_versions[name] = version

    def _place(self, name: str, paths: dict[str, Path]) -> None:
        files = [
            RemoteFile(path=path, sha256=hash_file(file), bytes=file.stat().st_size)
            for path, file in paths.items()
        ]
        by_hash = {one.sha256: paths[one.path] for one in files}
        is_checkpoint = name.startswith("checkpoints/")
        kept = [one.name for one in artifacts.list_checkpoints(self.attempt.folder.checkpoints)]
        request = FolderRequest(name=name, files=files, checkpoints=kept if is_checkpoint else None)
        for missing in self.connection.place(self.attempt.ref, request).missing:
            self._upload(by_hash[missing.sha256], missing)
        if self.connection.place(self.attempt.ref, request).missing:
            raise StudioAwayError(f"Files of {name} did not arrive.")

    def _upload(self, path: Path, missing: MissingFile) -> None:
        size, offset = path.stat().st_size, missing.offset
        with path.open("rb") as file:
            while True:
                self._check()
                file.seek(offset)
                part = FilePart(offset, size, file.read(CHUNK_BYTES))
                answer = self.connection.upload(self.attempt.ref, missing.sha256, part)
                self._backoff.reset()  # Much can arrive while every second call fails.
                if answer.is_whole:
                    return
                if not part.data or (not answer.offset and offset + len(part.data) == size):
                    raise StudioAwayError(f"{path.name} changed while it was sent.")
                offset = answer.offset

    def _end(self, ended: ProcessExit) -> None:
        # The other facts are known to the studio, or to a cluster, alone.
        facts = {name: fact for name, fact in asdict(ended).items() if name in _END_FACTS}
        facts["last_line"] = ended.last_line[:_LAST_LINE_CHARACTERS]
        answer = self.connection.end(
            self.attempt.ref, AttemptEnd(**facts, failure=self.attempt.failure)
        )
        self.attempt.is_over = True
        log.info("run_ended", extra={"run_id": self.attempt.ref.run_id, "status": answer.status})


def launch_spec(attempt: RemoteAttempt, settings: Settings) -> LaunchSpec:
    """Return how an attempt is launched; secrets are those of this machine, never the studio's."""
    assignment = attempt.record.assignment
    job = JobSpec.read(attempt.folder)
    secrets = settings.secret_environment(grader_judges.SECRETS)
    if not all(Path(name).is_absolute() for name in (job.model, job.teacher) if name):
        secrets |= process.hub_environment(settings)
        if token := settings.secret_value("hub_token"):
            secrets["HF_TOKEN"] = token
    return LaunchSpec(
        run_id=assignment.run_id,
        attempt=assignment.attempt,
        folder=attempt.folder,
        gpu=assignment.gpu,
        packages=frozenset(assignment.packages),
        secrets=secrets,
    )


def _implies_files(event: Event) -> bool:
    return isinstance(event, Checkpointed | Finished | Stopped | Paused)


def _list_files(root: Path) -> Iterator[tuple[str, Path]]:
    if root.is_file():
        yield root.name, root
    for one in artifacts.list_files(root):
        yield one.name, root / one.name


def _version(path: str, file: Path) -> tuple[str, int, int]:
    status = file.stat()
    return path, status.st_size, status.st_mtime_ns
