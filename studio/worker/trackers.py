"""Queue the tasks that send runs to trackers, as soon as a run has news for one."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.services.trackers import trackers
from studio.settings import Settings
from studio.worker.fault_isolation import FaultIsolation

CHECK_SECONDS = 1.0
"""How often to check whether there is news."""


@dataclass(slots=True)
class TrackerScheduler:
    engine: Engine
    settings: Settings
    isolation: FaultIsolation
    check_at: float = float("inf")
    """When to check for what an earlier tick has left out."""
    _checked_at: float = float("-inf")

    def tick(self) -> None:
        """Queue what is due."""
        if time.monotonic() - self._checked_at < CHECK_SECONDS:
            self.check_at = self._checked_at + CHECK_SECONDS
            return
        self._checked_at, now = time.monotonic(), datetime.now(UTC)
        self.check_at = float("inf")
        with self.isolation.step("trackers"):
            with read_session(self.engine) as db:
                if not trackers.has_due(db, now):
                    return
            with unit_of_work(self.engine) as db:
                trackers.enqueue_due(db, self.settings, now)
