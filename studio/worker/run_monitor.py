"""Follow the runs of a worker: store their events, pass requests on, and close what has ended."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunCommand, RunStatus
from studio.db.tables import Run
from studio.errors import NotFoundError
from studio.protocols.events import Failed
from studio.services.evaluations import automatic
from studio.services.models import models
from studio.services.runs import attempts, runs
from studio.services.runs.attempts import AttemptState, LeaseLostError
from studio.services.tasks import exit_diagnosis
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.attempt_monitor import MonitoredAttempt, has_new_events
from studio.worker.fault_isolation import FaultIsolation, catch_errors
from studio.worker.launchers.protocol import Launcher

log = logging.getLogger(__name__)

MAX_KILL_TICKS = 25
"""Ticks after which the slot of a killed run is freed, whatever its process does."""


STORED_TOGETHER = 50
"""The events of at most so many runs are stored in one transaction, so that none lasts long."""

STORE_SECONDS = 2.0
"""How long events are stored in one tick, so that the worker's heartbeat is never late."""


@dataclass(frozen=True, slots=True)
class _DueAttempt:
    """An attempt with new events, or whose process has ended."""

    run_id: int
    attempt: MonitoredAttempt
    end: ProcessExit | None

    def read_events(self, run: Run) -> attempts.NewEvents:
        has_new_events(self.attempt.folder, run.events_offset)  # raises if earlier events are lost
        return attempts.NewEvents(run, *self.attempt.folder.events.read(run.events_offset))


@dataclass(slots=True)
class RunMonitor:
    engine: Engine
    launcher: Launcher
    isolation: FaultIsolation
    monitored: dict[int, MonitoredAttempt] = field(default_factory=dict)
    _left: frozenset[int] = frozenset()
    """The runs whose events the last tick has left for the next one."""
    _errors: dict[int, Exception] = field(default_factory=dict)
    """What went wrong with runs in this tick, by their numbers."""

    @property
    def is_behind(self) -> bool:
        """Whether events wait that could be stored at once."""
        return bool(self._left)

    def follow(self, settings: Settings) -> None:
        """Do what is due for each run; an error in one does not prevent the others.

        All take one read of the database; only those with new events take more.
        """
        self._errors.clear()
        self._left = frozenset()
        if not self.monitored:
            return
        with self.isolation.step("follow"):
            self._store_due(self._find_due(settings), settings)
        if self.isolation.error("follow"):
            return  # Nothing is known about any of them.
        for run_id, attempt in list(self.monitored.items()):
            if run_id not in self._left:
                self._conclude(run_id, attempt)

    def _find_due(self, settings: Settings) -> list[_DueAttempt]:
        """Return the attempts whose events are to be stored; pass requests on to the others."""
        ends: dict[int, ProcessExit | None] = {}
        for run_id, attempt in list(self.monitored.items()):
            with self._part(run_id):
                if attempt.failure is None:
                    # Poll before reading: a process writes its last event before it exits.
                    ends[run_id] = self.launcher.poll(attempt.handle)
        with read_session(self.engine) as db:
            states = attempts.load_states(db, ends)
        due: list[_DueAttempt] = []
        for run_id, end in ends.items():
            with self._part(run_id):
                candidate = _DueAttempt(run_id, self.monitored[run_id], end)
                if self._is_due(candidate, states.get(run_id), settings):
                    due.append(candidate)
        return due

    def _is_due(
        self, candidate: _DueAttempt, state: AttemptState | None, settings: Settings
    ) -> bool:
        run_id, attempt = candidate.run_id, candidate.attempt
        if state is None:
            raise runs.not_found(run_id)
        attempts.check_owner(run_id, state.owner, attempt.owner)
        if has_new_events(attempt.folder, state.events_offset) or candidate.end is not None:
            return True
        if state.status is RunStatus.STOPPING:
            attempt.request(state.asked or RunCommand.CANCEL, self.launcher, settings)
        else:
            attempt.check_hang(self.launcher, settings.hang_seconds)
        return False

    def _store_due(self, due: list[_DueAttempt], settings: Settings) -> None:
        """Store events, those first that have waited longest."""
        end = time.monotonic() + STORE_SECONDS
        due.sort(key=lambda one: one.attempt.stored_at)
        batches = self._split(due)
        for batch in batches:
            self._store_or_split(batch, settings)
            if time.monotonic() >= end:
                break
        self._left = frozenset(one.run_id for batch in batches for one in batch)

    def _split(self, due: Sequence[_DueAttempt]) -> Iterator[Sequence[_DueAttempt]]:
        """Yield what is stored together: many runs, or one alone whose last step failed."""
        batch: list[_DueAttempt] = []
        for one in due:
            if self.isolation.error("follow", subject_of(one.run_id)):
                yield [one]
                continue
            batch.append(one)
            if len(batch) == STORED_TOGETHER:
                yield batch
                batch = []
        if batch:
            yield batch

    def _store_or_split(self, batch: Sequence[_DueAttempt], settings: Settings) -> None:
        """Store the events of many runs together, and run by run where that fails."""
        if len(batch) > 1:
            with catch_errors() as errors:
                self._store(batch, settings)
            if not errors:
                return
        for one in batch:
            with self._part(one.run_id):
                self._store([one], settings)

    def _store(self, batch: Sequence[_DueAttempt], settings: Settings) -> None:
        for one in batch:
            one.attempt.stored_at = time.monotonic()
        with unit_of_work(self.engine) as db:
            owned = attempts.load_owned(db, {one.run_id: one.attempt.owner for one in batch})
            before = {run_id: run.status for run_id, run in owned.items()}
            attempts.apply_all_events(db, [one.read_events(owned[one.run_id]) for one in batch])
            for one in batch:
                run = owned[one.run_id]
                if one.end is not None:
                    attempts.close_exited(db, run, one.attempt.add_evidence(one.end))
                if run.status is RunStatus.SUCCEEDED and before[one.run_id] is not run.status:
                    models.add_from_run(db, run, one.attempt.folder.artifacts)
                    automatic.queue_for_run(db, settings, run)
        for one in batch:
            with self._part(one.run_id):
                self._continue(one, owned[one.run_id], settings)

    def _continue(self, one: _DueAttempt, run: Run, settings: Settings) -> None:
        """Pass a request on to a run whose events are stored; let it go if it has ended."""
        if run.status is RunStatus.STOPPING:
            one.attempt.request(run.asked or RunCommand.CANCEL, self.launcher, settings)
        if one.end is not None:
            self._release(one.run_id)
            log.info("run_ended", extra={"run_id": one.run_id, "status": run.status.value})

    @contextmanager
    def _part(self, run_id: int) -> Iterator[None]:
        """Keep the error of one run for the end of the tick; let it go if the lease is lost."""
        with catch_errors() as errors:
            yield
        for error in errors:
            if isinstance(error, LeaseLostError):
                log.warning("lease_lost", extra={"run_id": run_id, "reason": str(error)})
                self._release(run_id)
            else:
                self._errors[run_id] = error

    def _release(self, run_id: int) -> None:
        del self.monitored[run_id]
        self.isolation.forget(subject_of(run_id))

    def _conclude(self, run_id: int, attempt: MonitoredAttempt) -> None:
        """Count the errors of a run, and end it if following it fails permanently."""
        subject, error = subject_of(run_id), self._errors.get(run_id)
        if error is not None or self.isolation.error("follow", subject):
            with self.isolation.step("follow", subject):
                if error is not None:
                    raise error
        if attempt.failure is None and (final := self.isolation.final_error("follow", subject)):
            attempt.failure = exit_diagnosis.monitoring_failure(final, "run")
        if attempt.failure is not None:
            with self.isolation.step("end", subject):
                self._end_attempt(run_id, attempt, attempt.failure)

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
        self._release(run_id)
        log.error("run_ended_by_worker", extra={"run_id": run_id, "reason": failure.message})


def subject_of(run_id: int) -> str:
    return f"run {run_id}"
