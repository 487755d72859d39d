"""Run one piece of work and log it as events; the last event always reports how it ended.

A task's function is found by its kind; its result is stored in its folder.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from studio import files
from studio.errors import StudioError, TrainingError
from studio.processes.start_time import process_start_time
from studio.protocols.events import (
    DISK_FULL_EXIT_CODE,
    Event,
    EventLog,
    Failed,
    Finished,
    Paused,
    PhaseChanged,
    Stopped,
)
from studio.protocols.run_dir import ExportDir, RunDir
from studio.protocols.tasks import TASK_DEFINITIONS, TaskDir, TaskSpec
from studio.recipe.exports import ExportSpec
from studio.redaction import redact
from studio.training.stop_handler import StopHandler, StopRequested

ReportProgress = Callable[[str, float | None], None]
"""Called with a description of the current step, and the share of the work that is done."""

TaskFunction = Callable[[TaskDir, dict[str, Any], ReportProgress], dict[str, Any]]

_MIN_SHARE_CHANGE = 0.005
"""The smallest change in the share that is reported."""
_MIN_SECONDS_BETWEEN = 0.5
"""Minimum time between reports that differ only in their numbers."""
_NUMBER = re.compile(r"[\d.,]+")


def run_task(folder: TaskDir, emit: Callable[[Event], None]) -> Finished:
    """Run the task in a folder, and write its result there."""
    spec = TaskSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))
    folder.files.mkdir(exist_ok=True)
    result = load_function(spec.kind)(folder, spec.params, ProgressReporter(emit).report)
    files.replace_text(folder.result, json.dumps(result, allow_nan=False))
    return Finished(metrics={})


def load_function(kind: str) -> TaskFunction:
    """Return the function that runs tasks of a kind."""
    module, _, name = TASK_DEFINITIONS[kind].entry_point.partition(":")
    task_function: TaskFunction = getattr(import_module(module), name)
    return task_function


@dataclass(slots=True)
class ProgressReporter:
    """Reports progress, but only when it has changed noticeably."""

    emit: Callable[[Event], None]
    _last_text: str = ""
    _last_share: float = -1.0
    _last_time: float = float("-inf")

    def report(self, phase: str, share: float | None = None) -> None:
        text, now = _NUMBER.sub("", phase), time.monotonic()
        has_moved = share is not None and share - self._last_share >= _MIN_SHARE_CHANGE
        if (
            text == self._last_text
            and not has_moved
            and now - self._last_time < _MIN_SECONDS_BETWEEN
        ):
            return
        self._last_text, self._last_share, self._last_time = (
            text,
            max(share or 0, self._last_share),
            now,
        )
        self.emit(PhaseChanged(name=phase, share=share))


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
    run, began = RunDir(root), time.monotonic()
    discarded: list[Path] = []

    def train(emit: EmitEvent) -> Event:
        with stop.stopping_allowed():
            from studio.runner import training_run  # noqa: PLC0415 -- heavy import
        outcome = training_run.train(run, emit, stop, began)
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
            return run_task(folder, emit)

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
