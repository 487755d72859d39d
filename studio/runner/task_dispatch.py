"""Run a task in its process: find the function for its kind, call it and store its result."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from studio import files
from studio.protocols.events import Event, Finished, PhaseChanged
from studio.protocols.tasks import TASK_DEFINITIONS, TaskDir, TaskSpec

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
