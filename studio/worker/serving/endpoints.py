"""The worker's side of endpoints: it starts, watches, adopts and stops what serves models.

Each endpoint occupies a slot. Runs go first: an endpoint finishes its answers, gives its slot up,
and starts again on the next request. All that must outlive the worker is in the endpoint's row.
"""

import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine as Database
from sqlmodel import Session

from studio.db.endpoints import Endpoint
from studio.db.session import read_session, unit_of_work
from studio.db.states import EndpointState
from studio.engines import ENGINES
from studio.engines.engine import Engine, Launch
from studio.errors import StudioError, UnavailableError
from studio.services.endpoints import endpoints, lifecycle, reasons, sources
from studio.services.models import endpoint_uses
from studio.services.queue.overview import Blocker
from studio.services.runs import artifacts
from studio.settings import Settings
from studio.worker.fault_isolation import FaultIsolation, catch_errors, is_shortage
from studio.worker.processes import process
from studio.worker.processes.process import Process
from studio.worker.serving import engine_process
from studio.worker.serving.engine_process import Probe

log = logging.getLogger(__name__)

STOP_SECONDS = 10.0
"""How long a process may take to end before it is killed."""

FIRST_PROBE_SECONDS = 0.2
"""How often a process that starts is asked whether it is ready."""

PROBE_SECONDS = 10.0
"""How often one that is ready is asked whether it is well."""

MAX_SILENT_PROBES = 6
"""One that does not answer so often counts as hung."""


@dataclass(slots=True)
class ServedProcess:
    """The process of an endpoint, as far as this worker knows it."""

    process: Process
    engine: Engine
    probe: Probe
    gpu: int | None
    started_at: float = field(default_factory=time.monotonic)
    stopping_at: float | None = None
    """Since when it is to end; None while it is not."""
    is_ready: bool = False
    silent: int = 0
    """How many probes in a row found that it does not answer."""
    failure: str = ""
    """Why this worker ended it, as text."""
    asked: Future[bool] | None = None
    next_probe_at: float = 0.0

    def request_exit(self) -> None:
        """Ask it to end; kill it if that takes too long."""
        now = time.monotonic()
        if self.stopping_at is None:
            self.stopping_at = now
            self.process.terminate()
        elif now - self.stopping_at > STOP_SECONDS:
            self.process.kill()


@dataclass(slots=True)
class EndpointProcesses:
    """The endpoints whose engines are programs of their own."""

    database: Database
    settings: Settings
    isolation: FaultIsolation
    monitored: dict[int, ServedProcess] = field(default_factory=dict)
    _retry_at: dict[int, float] = field(default_factory=dict)
    _probes: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(4, thread_name_prefix="probe")
    )

    @property
    def slots(self) -> int:
        return endpoint_uses.SLOTS_USED * len(self.monitored)

    @property
    def gpus(self) -> set[int | None]:
        return {served.gpu for served in self.monitored.values()}

    @property
    def is_busy(self) -> bool:
        """Whether a process is running, or is to be started again at some time."""
        is_waiting = any(at > time.monotonic() for at in self._retry_at.values())
        return bool(self.monitored) or is_waiting

    def adopt(self) -> None:
        """Take over the processes of an earlier worker, and end those that are not wanted."""
        with self.isolation.step("adopt", "endpoints"):
            with read_session(self.database) as db:
                rows = {_id(row): row for row in endpoints.list_all(db)}
            for endpoint_id, row in rows.items():
                if row.pid is not None:
                    with self.isolation.step("adopt", _subject(endpoint_id)):
                        self._adopt(endpoint_id)
            for endpoint_id in engine_process.list_marked(self.settings.home):
                if endpoint_id not in self.monitored:
                    engine_process.kill_marked(self.settings.home, endpoint_id)

    def _adopt(self, endpoint_id: int) -> None:
        with unit_of_work(self.database) as db:
            row = endpoints.get(db, endpoint_id)
            running = process.find_process(row.pid, row.pid_started)
            with catch_errors() as errors:
                key = lifecycle.read_key(self.settings, row)
            if running is None or errors:
                lifecycle.record_lost(row)
                return
            probe = _probe(row, key)
            served = ServedProcess(running, ENGINES[row.engine], probe, row.gpu)
            served.is_ready = row.state is EndpointState.READY
            self.monitored[endpoint_id] = served
        log.info("endpoint_adopted", extra={"endpoint": endpoint_id, "pid": running.pid})

    def follow(self) -> None:
        """Do what is due for each process."""
        if not self.monitored:
            return
        with read_session(self.database) as db:
            rows = {_id(row): row for row in endpoints.list_all(db)}
        for endpoint_id, served in list(self.monitored.items()):
            with self.isolation.step("serve", _subject(endpoint_id)):
                self._follow(rows.get(endpoint_id), endpoint_id, served)

    def _follow(self, row: Endpoint | None, endpoint_id: int, served: ServedProcess) -> None:
        if not served.process.is_alive:
            self._close(endpoint_id, served)
        elif row is None or served.stopping_at is not None or _is_to_end(row):
            served.request_exit()
        elif row.state is EndpointState.IDLE or self._update(row, served):
            pass  # In the first case it finishes its answers.
        elif not self._is_asking(served):
            check = self._check if served.is_ready else self._await_ready
            check(endpoint_id, served)

    def _update(self, row: Endpoint, served: ServedProcess) -> bool:
        """Note that a process is unused, or wanted again before it ended. Return whether it is."""
        is_back = served.is_ready and row.state is EndpointState.STARTING
        if not is_back and not lifecycle.is_idle(row):
            return False
        with unit_of_work(self.database) as db:
            if current := db.get(Endpoint, _id(row)):
                if lifecycle.is_idle(current):
                    lifecycle.give_up_slot(current, reasons.UNUSED)
                elif current.state is EndpointState.STARTING:
                    lifecycle.record_ready(current)
        return True

    def _is_asking(self, served: ServedProcess) -> bool:
        """Ask a process whether it is well, from time to time; whether the answer is pending."""
        if served.asked is not None:
            return not served.asked.done()
        if time.monotonic() >= served.next_probe_at:
            ask = engine_process.is_well if served.is_ready else engine_process.is_ready
            served.asked = self._probes.submit(ask, served.probe)
        return True

    def _take_answer(self, served: ServedProcess, seconds: float) -> bool:
        assert served.asked is not None  # noqa: S101 -- it has been asked
        is_well, served.asked = served.asked.result(), None
        served.next_probe_at = time.monotonic() + seconds
        return is_well

    def _await_ready(self, endpoint_id: int, served: ServedProcess) -> None:
        if self._take_answer(served, FIRST_PROBE_SECONDS):
            with unit_of_work(self.database) as db:
                row = db.get(Endpoint, endpoint_id)
                if row is not None and row.state is EndpointState.STARTING:
                    lifecycle.record_ready(row)
            served.is_ready = True
            log.info("endpoint_ready", extra={"endpoint": endpoint_id})
        elif time.monotonic() - served.started_at > served.engine.start_seconds:
            served.failure = reasons.explain_slow_start(served.engine.start_seconds)
            served.request_exit()

    def _check(self, endpoint_id: int, served: ServedProcess) -> None:
        """Record that a ready process is well, or end one that hangs."""
        served.silent = 0 if self._take_answer(served, PROBE_SECONDS) else served.silent + 1
        engine_process.shorten_log(self._log_file(endpoint_id))
        if served.silent >= MAX_SILENT_PROBES:
            served.failure = reasons.NO_ANSWER
            served.request_exit()
            return
        with unit_of_work(self.database) as db:
            if row := db.get(Endpoint, endpoint_id):
                lifecycle.record_stable(row)

    def _close(self, endpoint_id: int, served: ServedProcess) -> None:
        """Record the end of a process, and end whatever it left behind."""
        engine_process.kill_marked(self.settings.home, endpoint_id)
        was_asked = served.stopping_at is not None and not served.failure
        with unit_of_work(self.database) as db:
            row = db.get(Endpoint, endpoint_id)
            if row is not None and (was_asked or row.state is EndpointState.IDLE):
                lifecycle.forget_process(row)
            elif row is not None:
                lifecycle.record_crash(row, *self._explain_end(endpoint_id, served))
                wait = lifecycle.backoff_seconds(row.crashes)
                self._retry_at[endpoint_id] = time.monotonic() + wait
        del self.monitored[endpoint_id]
        log.info("endpoint_process_ended", extra={"endpoint": endpoint_id})

    def _explain_end(self, endpoint_id: int, served: ServedProcess) -> tuple[str, str]:
        """Return why a process ended, and the last lines of its log."""
        end = reasons.explain_end(served.engine.title, served.process.exit_code)
        lines = artifacts.read_log(self._log_file(endpoint_id), None, _LAST_LINES).lines
        return served.failure or end, reasons.explain_log(lines)

    def start_waiting(
        self,
        free_slots: Callable[[], int],
        free_gpu: Callable[[], int | None],
        obstacle: Callable[[], Blocker | None],
        make_room: Callable[[], None],
    ) -> None:
        """Start the endpoints that are wanted, as far as slots are free.

        `make_room` has others give a slot up, for an endpoint that somebody waits for.
        """
        with read_session(self.database) as db:
            waiting = [row for row in reversed(endpoints.list_all(db)) if self._may_start(row)]
        for row in waiting:
            with self.isolation.step("start", _subject(_id(row))):
                if free_slots() > 0:
                    self._start(_id(row), free_gpu())
                    continue
                if lifecycle.is_asked_for(row):
                    make_room()
                blocker = obstacle()
                self._note(_id(row), blocker.reason if blocker else reasons.NO_SLOT)

    def _may_start(self, row: Endpoint) -> bool:
        is_free = ENGINES[row.engine].is_external and _id(row) not in self.monitored
        is_due = time.monotonic() >= self._retry_at.get(_id(row), 0.0) or not row.crashes
        return is_free and is_due and lifecycle.may_start(row)

    def _note(self, endpoint_id: int, text: str) -> None:
        with unit_of_work(self.database) as db:
            row = db.get(Endpoint, endpoint_id)
            if row is not None and row.note != text:
                row.note = text

    def _start(self, endpoint_id: int, gpu: int | None) -> None:
        with catch_errors() as errors, unit_of_work(self.database) as db:
            row = db.get(Endpoint, endpoint_id)
            if row is not None and lifecycle.may_start(row):
                served = self._launch(db, row, gpu)
                self.monitored[endpoint_id] = served
                log.info("endpoint_started", extra={"endpoint": row.name, "port": row.port})
        for error in errors:
            if started := self.monitored.pop(endpoint_id, None):
                started.process.kill()
            if is_shortage(error):
                raise error
            log.error("endpoint_not_started", extra={"endpoint": endpoint_id}, exc_info=error)
            explained = error if isinstance(error, StudioError) else UnavailableError(f"{error}.")
            with unit_of_work(self.database) as db:
                if row := db.get(Endpoint, endpoint_id):
                    lifecycle.record_failure(row, explained)

    def _launch(self, db: Session, row: Endpoint, gpu: int | None) -> ServedProcess:
        engine, key, port = (
            ENGINES[row.engine],
            secrets.token_urlsafe(32),
            engine_process.free_port(),
        )
        servable = sources.resolve(db, self.settings.runs, sources.source_of(row))
        launch = Launch(
            program=engine.find_program(self.settings),
            name=row.name,
            path=servable.path,
            adapter=servable.adapter,
            adapter_rank=servable.adapter_rank,
            dtype=servable.dtype,
            port=port,
        )
        mark = engine_process.mark_of(self.settings.home, _id(row))
        added = {**engine.environment, engine.key_variable: key, engine_process.MARK: mark}
        locked = lifecycle.lock_key(db, self.settings, row, key)
        command = engine.command(launch)
        started = engine_process.start(command, self._log_file(_id(row)), gpu, added)
        lifecycle.record_process(row, locked, port, (started.pid, started.started), gpu)
        return ServedProcess(started, engine, _probe(row, key), gpu)

    def give_up(self, slots: int) -> None:
        """Have endpoints give slots up, those that are not in use first."""
        with read_session(self.database) as db:
            rows = [row for row in endpoint_uses.list_in_slots(db) if lifecycle.can_yield(row)]
        leaving = sum(self._is_leaving(endpoint_id) for endpoint_id in self.monitored)
        for row in sorted(rows, key=lifecycle.yield_order)[: max(0, slots - leaving)]:
            with unit_of_work(self.database) as db:
                current = db.get(Endpoint, _id(row))
                if current is not None and lifecycle.can_yield(current):
                    lifecycle.give_up_slot(current, reasons.GAVE_UP)

    def _is_leaving(self, endpoint_id: int) -> bool:
        with read_session(self.database) as db:
            row = db.get(Endpoint, endpoint_id)
        return row is None or row.state in (EndpointState.IDLE, EndpointState.STOPPED)

    def close(self) -> None:
        """Leave the processes to the next worker, or end them if runs are drained, too."""
        self._probes.shutdown(wait=False, cancel_futures=True)
        if self.settings.on_stop == "drain":
            for served in self.monitored.values():
                served.request_exit()

    def _log_file(self, endpoint_id: int) -> Path:
        return self.settings.endpoint_logs / str(endpoint_id) / "log.txt"


_LAST_LINES = 3
"""Lines of a log that say why a process ended."""


def _is_to_end(row: Endpoint) -> bool:
    """Whether a process is to end now: it is not wanted, or has finished its answers."""
    if row.state in (EndpointState.STOPPED, EndpointState.FAILING):
        return True
    return row.state is EndpointState.IDLE and not endpoint_uses.is_busy(row)


def _probe(row: Endpoint, key: str) -> Probe:
    assert row.port is not None  # noqa: S101 -- it has a process
    return Probe(row.port, key, row.name, ENGINES[row.engine].health_path)


def _subject(endpoint_id: int) -> str:
    return f"endpoint {endpoint_id}"


def _id(row: Endpoint) -> int:
    assert row.id is not None  # noqa: S101 -- an unflushed row is a bug
    return row.id
