"""Train in a cluster: one job per attempt.

The queue stays the studio's; the engine runs attempts. A thread speaks to the engine, so that the
worker's loop never waits for it. Whether an attempt lives is decided by what its job writes to the
run's folder: an engine may call a job running long after its machine has died, and an engine that
does not answer says nothing about its jobs.
"""

import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from studio.errors import ConflictError, InvalidError
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.worker.fault_isolation import catch_errors
from studio.worker.launchers.jobs.engine import (
    Engine,
    EngineAwayError,
    EngineJob,
    JobRefusedError,
    JobRequest,
    JobState,
)
from studio.worker.launchers.jobs.folder import JobFolder, Order, Report
from studio.worker.processes.launcher import LaunchSpec

log = logging.getLogger(__name__)

NODE = "studio.worker.launchers.jobs.node"
DEFAULT_SLOTS = 4
"""How many runs are given to the engine at once, which queues by itself."""


_CLOSE_SECONDS = 5.0
"""How long a question to the engine may hold the worker's end up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds; shorter in tests."""

    poll: float = 2.0
    """Between two questions to the engine."""
    longest_poll: float = 30.0
    """The same while the engine does not answer."""
    silence: float = 60.0
    """How long a running job may say nothing before its machine counts as lost."""
    settle: float = 10.0
    """How long what an ended job has written may take to be seen."""


@dataclass(slots=True)
class _Job:
    """What is known of one attempt's job."""

    name: str
    run: Path
    folder: JobFolder
    is_submitted: bool = False
    state: EngineJob | None = None
    """What the engine said last; None if it does not know the job, or was not asked."""
    is_stop_wanted: bool = False
    kill_at: float | None = None
    """When it was first to be killed."""
    refused: JobRefusedError | None = None
    report: Report = field(default_factory=Report)
    heard_at: float = field(default_factory=time.monotonic)
    """When something last showed that it lives, or that it need not say so."""
    told_at: float = float("-inf")
    """When it last said so itself."""
    ended_at: float | None = None
    """When the engine first said that it has ended."""


@dataclass(slots=True)
class JobLauncher:
    """Launches jobs. A handle is the name of the job, which follows from home, run and attempt."""

    engine: Engine
    home_id: str
    python: str = sys.executable
    command: Sequence[str] = ("-m", "studio.runner")
    """What Python runs for an attempt."""
    wanted_slots: int | None = None
    timing: Timing = field(default_factory=Timing)
    away: EngineAwayError | None = None
    """Set while the engine does not answer."""
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _ends: dict[str, ProcessExit] = field(default_factory=dict)
    _wake: threading.Event = field(default_factory=threading.Event)
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def open(self) -> None:
        """Start to speak to the engine."""
        self._thread = threading.Thread(target=self._speak, name=self.engine.title, daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Nothing makes jobs start faster."""

    def tick(self) -> None:
        """Say whether the engine answers.

        Raises:
            EngineAwayError: it does not; runs are left alone until it does.

        """
        if self.away is not None:
            raise self.away

    @property
    def news(self) -> socket.socket | None:
        return None

    def close(self) -> None:
        """Stop speaking to the engine; jobs keep running."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def submit(self, spec: LaunchSpec) -> str:
        job = self._job(spec)
        try:
            job.folder.create(spec.secrets)
        except FileExistsError:
            message = f"Attempt {spec.attempt} of run {spec.run_id} has been submitted before."
            raise ConflictError(message) from None
        return self._follow(job)

    def adopt(self, spec: LaunchSpec, handle: str) -> str:  # noqa: ARG002 -- follows from the spec
        """Follow a job again, or submit it if the last worker has not come to that."""
        job = self._job(spec)
        return self._follow(job) if job.folder.root.is_dir() else ""

    def poll(self, handle: str) -> ProcessExit | None:
        job = self._jobs.get(handle)
        if handle in self._ends or job is None:
            return self._ends.get(handle, ProcessExit())
        if job.refused is not None:
            raise job.refused
        end = self._judge(job)
        if end is not None:
            self._ends[handle] = end
            # Without its own word, it may only be out of sight.
            if job.report.exit_code is None:
                self.kill(handle)
        return end

    def waits_for(self, handle: str) -> str | None:
        job = self._jobs.get(handle)
        if job is None or time.monotonic() - job.told_at < self.timing.silence:
            return None
        if job.report.beat and (job.state is None or job.state.state is not JobState.WAITING):
            return None
        reason = self.away.message if self.away else job.state.reason if job.state else ""
        return reason or f"{self.engine.title} has not started it"

    def stop(self, handle: str) -> None:
        if job := self._jobs.get(handle):
            job.folder.write_order(Order.STOP)
            job.is_stop_wanted = True
            self._wake.set()

    def kill(self, handle: str) -> None:
        if job := self._jobs.get(handle):
            with suppress(OSError):  # The folder may be gone.
                job.folder.write_order(Order.KILL)
            job.kill_at = job.kill_at or time.monotonic()
            if job.refused is not None:
                self._ends[handle] = ProcessExit()
            self._wake.set()

    def dump_stacks(self, handle: str) -> None:
        if job := self._jobs.get(handle):
            job.folder.write_order(Order.DUMP)

    def pid(self, handle: str) -> int:  # noqa: ARG002 -- it is on another machine
        return 0

    def slots(self) -> int:
        return self.wanted_slots or DEFAULT_SLOTS

    def _job(self, spec: LaunchSpec) -> _Job:
        run = spec.folder.root
        name = f"studio-{self.home_id}-{spec.run_id}-{spec.attempt}"
        return _Job(name, run, JobFolder.of(run, spec.attempt))

    def _follow(self, job: _Job) -> str:
        self._jobs.setdefault(job.name, job)
        self._wake.set()
        return job.name

    def _judge(self, job: _Job) -> ProcessExit | None:
        """Return how a job has ended; None while it may live."""
        now, report, state = time.monotonic(), job.folder.read_report(), job.state
        if report != job.report:
            # A disk that cannot be read says nothing of the job.
            job.heard_at, job.report = now, report or job.report
            job.told_at = now if job.report.beat else job.told_at
        if job.report.exit_code is not None:
            return ProcessExit(exit_code=job.report.exit_code)
        if self.away is not None or not job.is_submitted:
            job.heard_at = now
            return None
        if state is not None and state.state is JobState.ENDED:
            job.ended_at = job.ended_at or now
            is_written = job.is_stop_wanted and not job.report.beat
            if now - job.ended_at < self.timing.settle and not is_written:
                return None
            return replace(state.end, cluster=f"{self.engine.title}: {state.reason.rstrip('.')}.")
        if state is not None and state.state is JobState.WAITING:
            job.heard_at = now
        return ProcessExit(silent=True) if now - job.heard_at > self.timing.silence else None

    def _speak(self) -> None:
        pause = self.timing.poll
        while not self._closed.is_set():
            self._wake.clear()
            with catch_errors() as errors:
                self._exchange()
            if errors:
                self._note_away(errors[0])
                pause = min(pause * 2, self.timing.longest_poll)
                self._closed.wait(pause)
                continue
            if self.away is not None:
                log.info("engine_back")
            self.away, pause = None, self.timing.poll
            self._wake.wait(pause if self._jobs else None)

    def _note_away(self, error: Exception) -> None:
        """Note that nothing is known of jobs; an answer that makes no sense is none."""
        if not isinstance(error, EngineAwayError):
            log.error("engine_not_understood", exc_info=error)
            error = EngineAwayError(f"{self.engine.title} does not answer as expected.")
        if self.away is None:
            log.warning("engine_away", extra={"reason": error.message})
        self.away = error

    def _exchange(self) -> None:
        """Submit and cancel what is due, and ask how all jobs are."""
        jobs = list(self._jobs.values())
        found = self.engine.find([job.name for job in jobs]) if jobs else {}
        for job in jobs:
            job.state = found.get(job.name)
            if job.kill_at is not None or job.is_stop_wanted:
                self._cancel(job)
            elif not job.is_submitted:
                self._submit(job)
            is_running = job.state is not None and job.state.state is JobState.RUNNING
            if job.name in self._ends and not (is_running and job.kill_at is not None):
                del self._jobs[job.name]

    def _submit(self, job: _Job) -> None:
        if job.state is None and not job.folder.is_claimed:
            node = (self.python, "-m", NODE, str(job.run), job.folder.root.name)
            command = (*node, self.python, *self.command)
            try:
                self.engine.submit(
                    JobRequest(name=job.name, command=command, log=job.run / "log.txt")
                )
            except JobRefusedError as error:
                job.refused = error
                return
            log.info("job_submitted", extra={"job": job.name})
        job.heard_at, job.is_submitted = time.monotonic(), True

    def _cancel(self, job: _Job) -> None:
        """Cancel a job that has not started, or does not obey an order to end.

        One that has not started does not train any more, whatever becomes of it: it reads its
        order first. Engines ask the processes of a job to stop before they kill them, so orders
        come first there, too.
        """
        kill_at, state = job.kill_at, job.state.state if job.state else None
        if state is JobState.WAITING:
            self.engine.cancel(job.name, only_waiting=True)
        elif state is JobState.RUNNING and kill_at is not None:
            if time.monotonic() - kill_at > self.timing.settle:
                self.engine.cancel(job.name)
            return
        if state is not JobState.RUNNING and not job.folder.is_claimed:
            self._ends.setdefault(job.name, ProcessExit())
        job.is_submitted = True


def home_id(file: Path) -> str:
    """Return the identifier of a home in the names of its jobs, made on first use.

    Raises:
        InvalidError: the file holds something else.

    """
    with suppress(FileExistsError), file.open("x", encoding="ascii") as new:
        new.write(secrets.token_hex(4))
    text = file.read_text(encoding="ascii").strip()
    if not text.isalnum():
        raise InvalidError(f"{file} is damaged.", hint="Delete it while no run is training.")
    return text
