"""Samples this machine in a thread: a driver that does not answer must not delay the worker."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from studio.hardware_usage.sampler import RunProcess, Sampler
from studio.hardware_usage.usage import HardwareUsage
from studio.services.hardware.usage_history import SAMPLE_SECONDS, Point
from studio.worker.fault_isolation import catch_errors

log = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
"""The first sample comes soon, so that a page has figures."""

RETRY_SECONDS = 60.0


class AnySampler(Protocol):
    def sample(self, runs: Mapping[int, RunProcess], /) -> HardwareUsage: ...


@dataclass(slots=True)
class HardwareSampler:
    """Keeps the newest sample until it is taken."""

    home: Path
    open_sampler: Callable[[Path], AnySampler] = Sampler
    runs: Mapping[int, RunProcess] = field(default_factory=dict)
    """The live runs; replaced as a whole, by the worker's thread."""
    _newest: Point | None = None
    _thread: threading.Thread | None = None

    def ensure_running(self, stop: threading.Event) -> None:
        """Start the thread once."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, args=(stop,), name="hardware", daemon=True
            )
            self._thread.start()

    def take(self) -> Point | None:
        """Return the newest sample, or None if it has been taken already."""
        newest, self._newest = self._newest, None
        return newest

    def _work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with catch_errors() as errors:
                self._sample_until(stop)
            for error in errors:
                log.error("hardware_not_sampled", exc_info=error)
                stop.wait(RETRY_SECONDS)

    def _sample_until(self, stop: threading.Event) -> None:
        sampler = self.open_sampler(self.home)
        seconds = FIRST_SECONDS
        while not stop.wait(seconds):
            self._newest = Point(at=datetime.now(UTC), usage=sampler.sample(self.runs))
            seconds = SAMPLE_SECONDS
