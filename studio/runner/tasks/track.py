"""Send a run's events to its trackers, in a process of its own: the run never waits for it.

It ends when there has been nothing to send for a while; the worker starts another when there is. A
tracker that does not answer fails after a minute, and is tried again later.
"""

import errno
import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from studio.errors import StudioError, UnavailableError
from studio.protocols.events import DISK_FULL
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.redaction import redact
from studio.runner.execution import ReportProgress
from studio.settings import Settings, TrackerName
from studio.trackers.contract import (
    RETRY_SECONDS,
    RunEnd,
    Target,
    TrackerOutcome,
    TrackerState,
    TrackerWriter,
    TrackingJob,
    TrackingResult,
    take_request,
)
from studio.trackers.event_batches import Reading, read_next
from studio.trackers.table import TRACKERS, require_installed

MAX_ROUNDS = 10
"""How often a tracker that computes gets that time: its package loads slowly on a busy machine."""
BUSY_SHARE = 0.005
"""The share of the time from which on it counts as computing."""
LAST_RESORT_SECONDS = 15.0
"""After this, a process that cannot even be interrupted ends itself."""
POLL_SECONDS = 0.5
REPORT_SECONDS = 5.0
"""How often to report progress."""
MEMORY_BYTES = 2 * 2**30
NICENESS = 10
_MAX_ERROR = 300

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_SILENT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB__DISABLE_STATS": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Variables that keep trackers from reporting to their makers, and from waiting for long."""


class TrackerSilentError(BaseException):
    """A tracker did not answer in time. No `Exception`, so that no handler catches it."""


def track(_folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Send the events of a run until there are no more for a while. Return a `TrackingResult`."""
    job, settings = TrackingJob.model_validate(params), Settings()
    _limit_process()
    sendings = [Sending(key, job, settings) for key in job.trackers]
    # A tracker that has failed must not keep the others waiting.
    sendings.sort(key=lambda sending: sending.state.failures)
    _send_all(sendings, report, job)
    for sending in sendings:
        sending.try_closing()
    outcomes = {sending.key: sending.outcome for sending in sendings}
    return TrackingResult(trackers=outcomes).model_dump(mode="json")


def _limit_process() -> None:
    for name in ("STUDIO_WANDB_KEY", "STUDIO_MLFLOW_KEY"):
        os.environ.pop(name, None)  # Each tracker gets its own.
    os.environ.update(_QUIET)
    os.nice(NICENESS)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))


def _send_all(sendings: list["Sending"], report: ReportProgress, job: TrackingJob) -> None:
    is_over = job.facts.end is not None
    progress_at, reported_at = time.monotonic(), float("-inf")
    while True:
        sent = [sending.try_next() for sending in sendings]
        now = time.monotonic()
        if not any(sent):
            has_ended = is_over or all(sending.has_ended for sending in sendings)
            is_needed = any(sending.is_retry_due() for sending in sendings)
            if has_ended or is_needed or now - progress_at > job.idle_seconds:
                return
            time.sleep(POLL_SECONDS)
            continue
        progress_at = now
        if now - reported_at > REPORT_SECONDS:
            reported_at = now
            report("sending metrics", min(sending.share for sending in sendings))


class Sending:
    """Sends one run to one tracker."""

    def __init__(self, key: str, job: TrackingJob, settings: Settings) -> None:
        run, wanted = RunDir(job.folder), job.trackers[key]
        self.key, self.name = key, wanted.tracker
        self._states, self._end = run.trackers, job.facts.end
        self._is_over, self._answer_seconds = self._end is not None, job.answer_seconds
        self.state = TrackerState.read(self._states, key)
        self.state.failures = wanted.failures
        self._writer: TrackerWriter | None = None
        self._retry_at: datetime | None = None
        self._is_stopped = False
        take_request(self._states, key)  # It was meant for an earlier process.
        self.has_ended = False
        """Whether the attempt has ended, so that nothing follows soon."""
        self._target = Target(
            facts=job.facts,
            options=wanted.options,
            folder=settings.trackers_folder / self.name,
            log=run.events,
            url=settings.tracker_url(self.name),
            secret=settings.secret_value(secret) if (secret := TRACKERS[self.name].secret) else "",
        )

    @property
    def outcome(self) -> TrackerOutcome:
        state = self.state
        return TrackerOutcome(
            offset=state.offset,
            is_closed=state.is_closed,
            failures=state.failures,
            error=state.error,
            hint=state.hint,
            retry_at=self._retry_at,
        )

    @property
    def share(self) -> float:
        """The share of the log that has been sent."""
        path = self._target.log.path
        size = path.stat().st_size if path.exists() else 0
        return self.state.offset / size if size else 0.0

    def try_next(self) -> bool:
        """Send the next batch. Return whether there was one."""
        self._take_request()
        if self._retry_at is not None or self._is_stopped:
            return False
        with self._failing():
            return self.send_next()
        return False

    def is_retry_due(self) -> bool:
        """Whether it has failed, and another process should try again now."""
        return self._retry_at is not None and datetime.now(UTC) >= self._retry_at

    def _take_request(self) -> None:
        match take_request(self._states, self.key):
            case "stop":
                self._is_stopped = self.has_ended = True
            case "retry" if self._retry_at is not None:
                self._retry_at, self.state.failures = datetime.now(UTC), 0

    def send_next(self) -> bool:
        """Send the next batch, and store that. Return whether there was one."""
        reading = self._read()
        if reading is None:
            return False
        if self._writer is None:
            self._open()
            # What is next may have changed: a tracker may have to go back.
            reading = self._read()
        if reading is None or self._writer is None:
            return False
        if reading.rewind is not None and not self._writer.rewind(reading.rewind):
            self.state.voids, self._writer = reading.state.voids, None
            self.state.start_again()
            self._save()
            return True
        if reading.batch:
            self._writer.write(reading.batch)
        self._advance(reading)
        return True

    def try_closing(self) -> None:
        if self._retry_at is None:
            with self._failing():
                self.close()

    def close(self) -> None:
        """Tell the tracker how the run ended, or let go of a run that may continue."""
        end = None if self._is_stopped else self._end
        if end is not None and self._writer is None and not self.state.is_closed:
            self._open()
        if self._writer is None:
            return
        self._writer.close(end)
        self._writer = None
        self.state.is_open, self.state.is_closed = False, end is not None
        self._save()

    def _read(self) -> Reading | None:
        return read_next(self._target.log, self.state, is_over=self._is_over)

    def _open(self) -> None:
        require_installed(self.name)
        module = import_module(f"studio.trackers.{self.name}")
        self._target.folder.mkdir(parents=True, exist_ok=True)
        self._writer = module.open_run(self._target, self.state)
        self.state.is_open, self.state.is_closed = True, False
        self._save()

    def _advance(self, reading: Reading) -> None:
        # What the tracker keeps has changed while it wrote.
        reading.state.own = self.state.own
        self.state, self.has_ended = reading.state, reading.has_ended
        self.state.failures, self.state.error, self.state.hint = 0, "", ""
        self._save()
        if reading.finished_at is not None and self._end is None:
            self._end = RunEnd(status="succeeded", at=reading.finished_at)

    def _save(self) -> None:
        self.state.save(self._states, self.key)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Record an error. Another process tries again: here, the package may be unusable."""
        try:
            with _time_limit(self._answer_seconds):
                yield
        except (TrackerSilentError, Exception) as error:  # noqa: BLE001 -- any package may fail in any way
            traceback.print_exception(error)
            failure = _explain(self.name, error, self._answer_seconds)
            self._writer, self.has_ended = None, True
            self.state.error, self.state.hint = failure.message, failure.hint
            delay = RETRY_SECONDS[min(self.state.failures, len(RETRY_SECONDS) - 1)]
            self.state.failures += 1
            self._retry_at = datetime.now(UTC) + timedelta(seconds=delay)
            with suppress(OSError):  # The disk may be full: then the result says why.
                self._save()


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what does nothing for that long; what computes, as an import does, gets more time.

    Raises:
        TrackerSilentError: It took longer.

    """
    rounds, used = 0, time.process_time()

    def begin_round() -> None:
        # Ends this process if it cannot even be interrupted.
        limit, stderr = seconds + LAST_RESORT_SECONDS, sys.__stderr__ or sys.stderr
        faulthandler.dump_traceback_later(limit, exit=True, file=stderr)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal rounds, used
        rounds, before, used = rounds + 1, used, time.process_time()
        if rounds >= MAX_ROUNDS or used - before < seconds * BUSY_SHARE:
            raise TrackerSilentError
        begin_round()

    handler, timer = signal.signal(signal.SIGALRM, interrupt), signal.getitimer(signal.ITIMER_REAL)
    try:
        begin_round()
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _explain(name: TrackerName, error: BaseException, seconds: float) -> StudioError:
    """Return an error of a tracker in words."""
    title = TRACKERS[name].title
    match error:
        case StudioError():
            return error
        case TrackerSilentError():
            return UnavailableError(
                f"{title} did not answer for {seconds:g} seconds.",
                hint="Check that its server runs and can be reached from this machine.",
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return UnavailableError(DISK_FULL.message, hint=DISK_FULL.hint)
        case OSError(filename=path, strerror=reason) if path and reason:
            return UnavailableError(
                f"{title}: {Path(str(path)).name} cannot be written: {reason.lower()}.",
                hint="Let the studio's user write to the folder of trackers.",
            )
        case MemoryError():
            return UnavailableError(f"{title} needs more memory than trackers may use.")
    reason = next(iter(redact(str(error)).strip().splitlines()), "") or type(error).__name__
    return UnavailableError(
        f"{title} failed: {reason[:_MAX_ERROR].rstrip('.')}.",
        hint="The log of the task has the details.",
    )
