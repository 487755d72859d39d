"""Follow the runs of a worker: store their events, pass requests on, and close what has ended."""

import logging
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunCommand, RunStatus
from studio.db.tables import Run
from studio.errors import NotFoundError
from studio.protocols.events import Failed
from studio.services.evaluations import automatic
from studio.services.models import models
from studio.services.runs import attempts
from studio.services.runs.attempts import LeaseLostError
from studio.services.tasks import exit_diagnosis
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.attempt_monitor import MonitoredAttempt, has_new_events
from studio.worker.fault_isolation import FaultIsolation
from studio.worker.processes.launcher import LocalLauncher

log = logging.getLogger(__name__)

MAX_KILL_TICKS = 25
"""Ticks after which the slot of a killed run is freed, whatever its process does."""


@dataclass(slots=True)
class RunMonitor:
    engine: Engine
    launcher: LocalLauncher
    isolation: FaultIsolation
    monitored: dict[int, MonitoredAttempt] = field(default_factory=dict)

    def follow(self, settings: Settings) -> None:
        """Do what is due for each run; an error in one does not prevent the others."""
        for run_id, attempt in list(self.monitored.items()):
            self._monitor(run_id, attempt, settings)

    def _monitor(self, run_id: int, attempt: MonitoredAttempt, settings: Settings) -> None:
        """Follow a run, or end it if following it fails permanently."""
        subject = subject_of(run_id)
        if attempt.failure is None:
            with self.isolation.step("follow", subject):
                self._follow(run_id, attempt, settings)
            if error := self.isolation.final_error("follow", subject):
                attempt.failure = exit_diagnosis.monitoring_failure(error, "run")
        if attempt.failure is not None:
            with self.isolation.step("end", subject):
                self._end_attempt(run_id, attempt, attempt.failure)
        if run_id not in self.monitored:
            self.isolation.forget(subject)

    def _end_attempt(self, run_id: int, attempt: MonitoredAttempt, failure: Failed) -> None:
        """Kill a run that cannot be followed, then mark it as failed, which frees its slot."""
        attempt.kills += 1
        end: ProcessExit | None = None
        with self.isolation.step("kill", subject_of(run_id)):
            self.launcher.kill(attempt.handle)
            end = self.launcher.poll(attempt.handle)
        if end is None and attempt.kills < MAX_KILL_TICKS:
            return  # Its process is about to exit.
        with suppress(NotFoundError, LeaseLostError), unit_of_work(self.engine) as db:
            run = attempts.require_owned(db, run_id, attempt.owner)
            if not attempt.folder.root.is_dir():
                run.checkpoint_step = None
            attempts.fail(db, run, failure)
            attempts.close_exited(db, run, end or ProcessExit())
        del self.monitored[run_id]
        log.error("run_ended_by_worker", extra={"run_id": run_id, "reason": failure.message})

    def _follow(self, run_id: int, attempt: MonitoredAttempt, settings: Settings) -> None:
        # Poll before reading: a process writes its last event before it exits.
        end = self.launcher.poll(attempt.handle)
        try:
            if end is None and not self._has_news(run_id, attempt):
                attempt.check_hang(self.launcher, settings.hang_seconds)
                return
            run = self._read_events(run_id, attempt, end, settings)
        except LeaseLostError as error:
            log.warning("lease_lost", extra={"run_id": run_id, "reason": str(error)})
            del self.monitored[run_id]
            return
        if run.status is RunStatus.STOPPING:
            attempt.request(run.asked or RunCommand.CANCEL, self.launcher, settings)
        if end is not None:
            del self.monitored[run_id]
            log.info("run_ended", extra={"run_id": run_id, "status": run.status.value})

    def _has_news(self, run_id: int, attempt: MonitoredAttempt) -> bool:
        """Whether there are new events or a stop request; takes no write lock."""
        with read_session(self.engine) as db:
            run = attempts.require_owned(db, run_id, attempt.owner)
        return has_new_events(attempt.folder, run.events_offset) or run.status is RunStatus.STOPPING

    def _read_events(
        self, run_id: int, attempt: MonitoredAttempt, end: ProcessExit | None, settings: Settings
    ) -> Run:
        with unit_of_work(self.engine) as db:
            run = attempts.require_owned(db, run_id, attempt.owner)
            old_status, events = run.status, attempt.folder.events
            has_new_events(attempt.folder, run.events_offset)  # raises if earlier events are lost
            attempts.apply_events(db, run, *events.read(run.events_offset))
            if end is not None:
                attempts.close_exited(db, run, attempt.add_evidence(end))
            if run.status is RunStatus.SUCCEEDED and old_status is not run.status:
                models.add_from_run(db, run, attempt.folder.artifacts)
                automatic.queue_for_run(db, settings, run)
        return run


def subject_of(run_id: int) -> str:
    return f"run {run_id}"
