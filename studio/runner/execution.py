"""Run one piece of work and log it as events; the last event always reports how it ended."""

import errno
import fcntl
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from studio.errors import StudioError, TrainingError
from studio.processes.start_time import process_start_time
from studio.protocols.events import (
    DISK_FULL_EXIT_CODE,
    Event,
    EventLog,
    Failed,
    Finished,
    Paused,
    Stopped,
)
from studio.protocols.run_dir import ExportDir, RunDir
from studio.protocols.tasks import TaskDir
from studio.recipe.exports import ExportSpec
from studio.redaction import redact
from studio.runner import task_dispatch
from studio.training.stop_handler import StopHandler, StopRequested


@contextmanager
def lock_run(run: RunDir) -> Iterator[None]:
    """Lock the folder, waiting for a process that is just exiting. The system always unlocks it."""
    with run.lock.open("a+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pid = os.getpid()
        lock.truncate(0)
        lock.write(f"{pid} {process_start_time(pid)!r}")
        lock.flush()
        yield


EmitEvent = Callable[[Event], None]
WorkFunction = Callable[[EmitEvent], Event]
"""Does the work and returns its last event."""


def execute_run(root: Path, stop: StopHandler) -> int:
    """Train the run in a folder. Return the exit code: 0 unless it failed.

    If the disk has no room for the last event, the exit code reports that instead.
    """
    run = RunDir(root)
    discarded: list[Path] = []

    def train(emit: EmitEvent) -> Event:
        with stop.stopping_allowed():
            from studio.runner import training_run  # noqa: PLC0415 -- heavy import
        outcome = training_run.train(run, emit, stop)
        if not outcome.keeps_checkpoints:
            discarded.append(run.checkpoints)
        return outcome.event

    with lock_run(run):
        code = _log_work(run.events, stop, train)
        # Only a run that has logged its final result will never resume from its checkpoints.
        for folder in discarded:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            run.checkpoints.rmdir()
        run.command.unlink(missing_ok=True)
    return code


def execute_export(root: Path, stop: StopHandler) -> int:
    """Make the export in a folder. Return the exit code: 1 if it failed, else 0."""
    folder = ExportDir(root)

    def make(emit: EmitEvent) -> Event:
        with stop.stopping_allowed():
            from studio.runner import training_run  # noqa: PLC0415 -- heavy import
            from studio.training.export import exporter  # noqa: PLC0415 -- heavy import

            spec = ExportSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))
            recipe = training_run.load_recipe(RunDir(spec.run))
            return Finished(metrics=exporter.export_run(folder, spec, recipe, emit))

    return _log_work(folder.events, stop, make)


def execute_task(root: Path, stop: StopHandler) -> int:
    """Run the task in a folder. Return the exit code: 1 if it failed, else 0."""
    folder = TaskDir(root)

    def do(emit: EmitEvent) -> Event:
        with stop.stopping_allowed():
            return task_dispatch.run_task(folder, emit)

    return _log_work(folder.events, stop, do)


def _log_work(log: EventLog, stop: StopHandler, work: WorkFunction) -> int:
    try:
        return _log_events(log, stop, work)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return DISK_FULL_EXIT_CODE


def _log_events(log: EventLog, stop: StopHandler, work: WorkFunction) -> int:
    def emit(event: Event) -> None:
        with stop.stopping_deferred():
            log.append(event)

    try:
        last = work(emit)
    except StopRequested:
        log.append(_stopped_event(stop))
    except Exception as error:  # noqa: BLE001 -- last resort: the studio must learn of every failure
        if not stop.has_interrupted:
            return _log_failure(error, emit)
        log.append(_stopped_event(stop))
    else:
        log.append(last)
    return 0


def _stopped_event(stop: StopHandler) -> Paused | Stopped:
    print("stopped on request", flush=True)  # noqa: T201 -- the run's own log
    return Paused(step=stop.step) if stop.requested == "pause" else Stopped(step=stop.step)


def _log_failure(error: Exception, emit: EmitEvent) -> int:
    traceback.print_exception(error)
    failure = _to_failed(error)
    redacted = {"message": redact(failure.message), "hint": redact(failure.hint)}
    emit(failure.model_copy(update=redacted))
    return 1


def _to_failed(error: Exception) -> Failed:
    if isinstance(error, StudioError) and not isinstance(error, TrainingError):
        return Failed(code=error.code, message=error.message, hint=error.hint)
    try:
        from studio.training import exception_mapping  # noqa: PLC0415 -- heavy import
    except ImportError as missing:
        # Failures are explained by torch's exception types. Without torch, its absence is the
        # cause.
        reason = f"{missing.name} is not installed" if missing.name else str(missing).rstrip(".")
        return Failed(
            code="dependency_missing",
            message=f"A package that training needs cannot be loaded: {reason}.",
            hint="Install the training packages. Run `studio doctor` to list what is missing.",
        )
    return exception_mapping.explain(error)
