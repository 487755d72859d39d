"""The worker's loop: claim runs, launch them, follow their events, and close them.

All state is in the database and the run folders, so a worker may be killed anywhere: the next one
finds the attempts that are still running and monitors them.
"""

import logging
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError
from sqlmodel import Session

from studio.db.session import current_time, read_session, unit_of_work
from studio.db.tables import FailingStep, Run, Worker
from studio.errors import NotFoundError
from studio.hardware import Hardware, detect, free_memory
from studio.hardware_usage.sampler import RunProcess
from studio.protocols import tokenizer_service
from studio.protocols.events import Failed
from studio.protocols.run_dir import RunDir
from studio.services.hardware import gpu_health, usage_history
from studio.services.queue import concurrent_exports, concurrent_inference, overview, queue
from studio.services.queue.gpu_pools import GpuPools
from studio.services.queue.overview import Blocker
from studio.services.runs import attempts, bulk_actions, run_commands, runs
from studio.services.storage import atomic_dirs
from studio.services.tasks import exit_diagnosis
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.services.trackers import trackers
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.attempt_monitor import MonitoredAttempt, record_waits
from studio.worker.fault_isolation import FaultIsolation, catch_errors, is_shortage
from studio.worker.gpus import MachineGpus
from studio.worker.hardware_sampler import HardwareSampler
from studio.worker.launchers.choice import choose
from studio.worker.launchers.protocol import Launcher
from studio.worker.notifications import NotificationSender
from studio.worker.processes import run_dir_setup
from studio.worker.processes.launcher import LaunchSpec
from studio.worker.run_monitor import RunMonitor, subject_of
from studio.worker.serving.endpoints import EndpointProcesses
from studio.worker.serving.pinned_models import PinnedModels
from studio.worker.socket_services import InferenceService, SocketService
from studio.worker.sweep_scheduler import SweepScheduler
from studio.worker.tasks import TaskCommands, TaskScheduler
from studio.worker.trackers import TrackerScheduler
from studio.worker.waiting import TICK_SECONDS, Waiter, open_waiter

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
TRASH_SECONDS = 3600.0
"""How often to check for trash that is old enough to delete."""

REPORT_SECONDS = 1.0
"""How soon a change in the failing steps is reported; rarely enough to write each time."""

START_SECONDS = 0.25
"""How long runs are started in one tick, so that those that train are not left alone for long."""


def _worker_name() -> str:
    return f"worker-{os.getpid()}-{secrets.token_hex(2)}"


@dataclass(slots=True)
class WorkerLoop:
    engine: Engine
    settings: Settings
    launcher: Launcher
    hardware: Hardware = field(default_factory=detect)
    commands: TaskCommands = field(default_factory=TaskCommands)
    name: str = field(default_factory=_worker_name)
    isolation: FaultIsolation = field(default_factory=FaultIsolation)
    run_monitor: RunMonitor = field(init=False)
    scheduler: TaskScheduler = field(init=False)
    sweeper: SweepScheduler = field(init=False)
    tracking: TrackerScheduler = field(init=False)
    inference: InferenceService = field(init=False)
    endpoints: EndpointProcesses = field(init=False)
    pinned: PinnedModels = field(init=False)
    sampler: HardwareSampler = field(init=False)
    gpus: MachineGpus = field(init=False)
    _unlaunched: dict[int, Failed] = field(default_factory=dict)
    _reported: list[FailingStep] = field(default_factory=list)
    _is_starting: bool = False
    """Whether more runs may wait that can start at once."""
    _heartbeat_at: float = float("-inf")
    _trash_emptied_at: float = float("-inf")

    def __post_init__(self) -> None:
        shared = (self.engine, self.settings, self.isolation)
        self.run_monitor = RunMonitor(self.engine, self.launcher, self.isolation)
        self.scheduler = TaskScheduler(*shared, self.commands, self.hardware)
        self.sweeper = SweepScheduler(self.engine, self.settings.cache / "sweeps", self.isolation)
        self.tracking = TrackerScheduler(*shared)
        self.inference = InferenceService(self.settings)
        self.endpoints = EndpointProcesses(*shared)
        self.pinned = PinnedModels(*shared, self.inference.service)
        self.sampler = HardwareSampler(self.settings.home)
        self.gpus = MachineGpus(self.hardware)

    @property
    def monitored(self) -> dict[int, MonitoredAttempt]:
        """The attempts of this worker, by the numbers of their runs."""
        return self.run_monitor.monitored

    @classmethod
    def local(cls, engine: Engine, settings: Settings) -> "WorkerLoop":
        """Make a worker with the launcher of the settings, which may raise a StudioError."""
        return cls(engine, settings, choose(settings))

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; then leave runs to the next worker, or drain them."""
        step = self.isolation.step
        self.adopt(alone=True)
        with step("launcher"):
            self.launcher.open()
        log.info("worker_started", extra={"slots": self.launcher.slots()})
        sender = NotificationSender(self.engine, self.settings, self.isolation)
        tokenizer = SocketService(
            tokenizer_service.socket_path(self.settings.home), tokenizer_service.MODULE
        )
        self.sampler.ensure_running(stop)
        with open_waiter(self.engine, stop) as waiter:
            while not stop.is_set():
                with step("messages"):
                    sender.ensure_running(stop)
                with step("desk"):
                    tokenizer.tick()
                if tokenizer.is_running or self.monitored:
                    self.launcher.want()
                with step("speaker"):
                    self._tick_inference()
                self.tick(is_idle=not waiter.is_due)
                with step("rest"):
                    self._rest(waiter, tokenizer)
                if self.isolation.error("rest"):
                    stop.wait(TICK_SECONDS)
        for shut_down in (
            tokenizer.close,
            self.inference.close,
            self.endpoints.close,
            self._drain,
            self.launcher.close,
            self._deregister,
        ):
            with step("leave"):
                shut_down()
        log.info("worker_stopped", extra={"left_running": len(self.monitored)})

    def _rest(self, waiter: Waiter, tokenizer: SocketService) -> None:
        """Wait for the next tick: soon while something is going on, else as long as possible."""
        parts = (self.scheduler, self.endpoints, self.pinned, self.sweeper, self.inference)
        states = (self.monitored, self._unlaunched, self._reported, self.isolation.failing_steps())
        is_behind = self._is_starting or self.run_monitor.is_behind
        waiter.wait(
            (self.launcher.news, tokenizer.news, self.inference.news),
            is_busy=any(states) or any(part.is_busy for part in (*parts, tokenizer)),
            until=time.monotonic() if is_behind else self._heartbeat_at + HEARTBEAT_SECONDS,
            due_at=self.tracking.check_at,
        )

    def adopt(self, *, alone: bool = False) -> None:
        """Take over abandoned attempts: running, ended or only half launched.

        A worker that is alone on its folder need not wait for the leases of earlier workers.
        """
        with self.isolation.step("adopt"):
            with read_session(self.engine) as db:
                abandoned = [
                    _id(run) for run in attempts.list_abandoned(db, self.name, alone=alone)
                ]
            for run_id in abandoned:
                with self.isolation.step("adopt", subject_of(run_id)):
                    self._adopt(run_id, alone=alone)
        if alone:
            self.scheduler.adopt()
            self.endpoints.adopt()
            self.pinned.adopt()

    def _adopt(self, run_id: int, *, alone: bool) -> None:
        with unit_of_work(self.engine) as db:
            abandoned = attempts.list_abandoned(db, self.name, alone=alone)
            run = next((candidate for candidate in abandoned if _id(candidate) == run_id), None)
            if run is None or attempts.close_silent(db, run):
                return  # Another worker was faster; or it is on a machine of its own.
            owner, spec = attempts.take_over(db, run, self.name), self._spec(run)
            attempt = MonitoredAttempt(owner, run.handle, spec.folder, run.gpu)
            with catch_errors() as errors:
                run.handle = attempt.handle = self.launcher.adopt(spec, run.handle)
            for error in errors:
                if is_shortage(error):
                    raise error
                log.error("run_not_adopted", extra={"run_id": run_id}, exc_info=error)
                attempt.failure = exit_diagnosis.monitoring_failure(error, "run")
            if not run.handle and not attempt.failure:
                attempts.requeue(db, run)
                return
            self.monitored[run_id] = attempt
            log.info("run_adopted", extra={"run_id": run_id, "handle": run.handle})

    def tick(self, *, takes: bool = True, is_idle: bool = False) -> None:
        """Do all work that is due; an error in one step does not prevent the others."""
        step = self.isolation.step
        if self._is_heartbeat_due():
            self._heartbeat()
        with step("waits"):
            record_waits(self.engine, self.launcher, self.monitored)
        with step("launcher"):
            self.launcher.tick()
        if is_idle:
            return
        for run_id in list(self._unlaunched):
            with step("fail", subject_of(run_id)):
                self._fail_unlaunched(run_id)
        self.run_monitor.follow(self.settings)
        self.scheduler.follow()
        with step("endpoints"):
            self.endpoints.follow()
        with step("speaker"):
            self.inference.status.tick(self.engine, self.name)
        self._is_starting = False
        if takes:
            with step("start"):
                self._is_starting = self._start_runs()
            if self._is_starting:
                return  # More may wait, and they come before everything below.
            self.tracking.tick()
            self.scheduler.start_waiting(self._free_slots, self._free_gpu)
            with step("endpoints"):
                self._tick_endpoints()
            self.sweeper.tick()

    def _free_slots(self) -> int:
        """Return the slots for work other than runs: none while it has no GPU that works."""
        if self._is_gpu_missing():
            return 0
        with read_session(self.engine) as db:
            return max(0, self._slots - queue.count_used_slots(db, self.name))

    def _slot_obstacle(self) -> Blocker | None:
        with read_session(self.engine) as db:
            return overview.find_work_blocker(db)

    def _weight_budget(self) -> int:
        """Return the memory for a model beside what runs, of which a loaded one has a part."""
        loaded = self.inference.budget if self.inference.service.is_running else 0
        free = self.hardware.memory_bytes if loaded else free_memory()
        with read_session(self.engine) as db:
            return concurrent_inference.weight_budget(db, self.hardware, free)

    @property
    def _slots(self) -> int:
        """The slots available to runs: those that no other work occupies."""
        others = self.scheduler.slots + self.inference.slots + self.endpoints.slots
        return self.launcher.slots() - others

    def _missing_slots(self) -> int:
        """Return how many more slots must be free for the next run or task to start."""
        with read_session(self.engine) as db:
            needed = max(queue.next_run_slots(db), self.scheduler.slots_needed(db))
            used = queue.count_used_slots(db, self.name)
            lent = self.inference.gpus | self.endpoints.gpus
            is_lent = bool(lent) and (
                queue.needs_gpu_of(db, self._pools(), lent) or self._needs_gpu(db)
            )
        # One that needs more than there are will never start.
        is_possible = 0 < needed <= self.launcher.slots()
        return max(int(is_lent), used + needed - self._slots) if is_possible else 0

    def _needs_gpu(self, db: Session) -> bool:
        """Whether the next task waits for a GPU, and for nothing else."""
        if queue.next_run(db) or not self._is_gpu_missing():
            return False
        return bool(self.gpus.hardware.working_gpus and self.scheduler.slots_needed(db))

    def _tick_inference(self) -> None:
        if self.inference.service.has_clients() and not self._free_slots():
            self.endpoints.give_up(1)
        callables = (self._free_slots, self._free_gpu, self._slot_obstacle, self._weight_budget)
        self.inference.tick(*callables)
        if self.inference.slots and self._missing_slots():
            self.inference.release_slot()
        self.pinned.tick(self._missing_slots)

    def _tick_endpoints(self) -> None:
        """Start endpoints in slots that nothing else waits for; others get theirs."""
        if missing := self._missing_slots():
            self.endpoints.give_up(missing)
        else:
            asked = (self._free_slots, self._free_gpu, self._slot_obstacle, self._make_room)
            self.endpoints.start_waiting(*asked)

    def _make_room(self) -> None:
        """Have a model or an endpoint that is not in use give its slot up for an endpoint."""
        if self.inference.slots:
            self.inference.release_slot()
        else:
            self.endpoints.give_up(1)

    def _drain(self) -> None:
        """Make each run write a checkpoint and stop; it is queued again for the next worker."""
        if self.settings.on_stop != "drain":
            return
        with unit_of_work(self.engine) as db:
            for run_id in self.monitored:
                run_commands.drain(db, run_id)
        pause, end = threading.Event(), time.monotonic() + self.settings.save_grace_seconds
        while self.monitored and time.monotonic() < end:
            self.tick(takes=False)
            pause.wait(TICK_SECONDS)

    def _deregister(self) -> None:
        with unit_of_work(self.engine) as db:
            workers.deregister(db, self.name)

    def _is_heartbeat_due(self) -> bool:
        is_news = self.isolation.failing_steps() != self._reported
        return time.monotonic() - self._heartbeat_at >= (
            REPORT_SECONDS if is_news else HEARTBEAT_SECONDS
        )

    def _heartbeat(self) -> None:
        self._heartbeat_at = time.monotonic()
        self.sampler.runs = self._run_processes()
        failing = self.isolation.failing_steps()
        if sample := self.sampler.take():
            self.gpus.take_reports(sample.usage)
        with self.isolation.step("heartbeat"), unit_of_work(self.engine) as db:
            self.gpus.keep_from_work(gpu_health.list_quarantined(db) if self.gpus.all else {})
            worker = Worker(name=self.name, pid=os.getpid(), slots=self.launcher.slots())
            worker.hardware = workers.HARDWARE_ADAPTER.dump_python(self.gpus.hardware, mode="json")
            worker.beat_at = current_time(db)
            worker.failing, worker.failures = failing, self.isolation.failures
            workers.heartbeat(db, worker)
            if sample:
                usage_history.record(db, self.name, sample)
            attempts.extend_leases(db, self.name)
            self._reported = failing
        if time.monotonic() - self._trash_emptied_at > TRASH_SECONDS:
            self._trash_emptied_at = time.monotonic()
            with self.isolation.step("trash"), unit_of_work(self.engine) as db:
                bulk_actions.empty(db, self.settings.runs)
        self.adopt()

    def _run_processes(self) -> dict[int, RunProcess]:
        return {
            run_id: RunProcess(pid, attempt.gpu)
            for run_id, attempt in self.monitored.items()
            if (pid := self.launcher.pid(attempt.handle))
        }

    def _start_runs(self) -> bool:
        """Start queued runs, at least one of them. Return whether more may wait."""
        end = time.monotonic() + START_SECONDS
        while self._take_next():
            if time.monotonic() >= end:
                return True
        return False

    def _take_next(self) -> bool:
        """Start the next queued run. Return whether there was one."""
        with read_session(self.engine) as db:
            # There may not be enough memory for a run next to an export.
            is_any = queue.is_any_waiting(db)
            if not is_any or concurrent_exports.blocking_export(db, self.hardware):
                return False
        with unit_of_work(self.engine) as db:
            # A paused run may be queued again before its process has exited.
            claimable = (self.name, self._slots)
            run = queue.claim(db, *claimable, excluded=self.monitored, pools=self._pools())
        if run is not None:
            self._launch(_id(run))
        return run is not None

    def _launch(self, run_id: int) -> None:
        with (
            catch_errors() as errors,
            atomic_dirs.explain_disk_full(),
            unit_of_work(self.engine) as db,
        ):
            run = runs.get(db, run_id)
            runs.recheck_precision(db, run, self.gpus.hardware_of(run.gpu))
            if run.attempt == 1:
                trackers.add_defaults(db, run, self.settings)
            spec = run_dir_setup.prepare_launch(db, run, self._spec(run), self.settings)
            handle = self.launcher.submit(spec)
            owner = attempts.AttemptOwner(self.name, run.attempt)
            self.monitored[run_id] = MonitoredAttempt(owner, handle, spec.folder, run.gpu)
            attempts.record_process(run, handle)
        for error in errors:
            log.error("run_not_launched", extra={"run_id": run_id}, exc_info=error)
            self._fail_launch(run_id, error)

    def _fail_launch(self, run_id: int, error: Exception) -> None:
        is_unwritten = isinstance(error.__cause__ or error, DatabaseError)
        if is_unwritten and run_id in self.monitored:
            return  # It is training; if this worker dies, the next one finds it by its folder.
        failure = run_dir_setup.launch_error(error)
        if started := self.monitored.pop(run_id, None):
            self.launcher.kill(started.handle)
        self._unlaunched[run_id] = Failed(
            code=failure.code, message=failure.message, hint=failure.hint
        )
        with self.isolation.step("fail", subject_of(run_id)):
            self._fail_unlaunched(run_id)

    def _fail_unlaunched(self, run_id: int) -> None:
        """Mark a run as failed that was not launched; retried until a full disk has space again."""
        with suppress(NotFoundError), unit_of_work(self.engine) as db:
            run = runs.get(db, run_id)
            attempts.fail(db, run, self._unlaunched[run_id])
            attempts.close_exited(db, run, ProcessExit())
        del self._unlaunched[run_id]

    @property
    def _used_gpus(self) -> list[int | None]:
        others = self.scheduler.gpus | self.inference.gpus | self.endpoints.gpus
        return [*(attempt.gpu for attempt in self.monitored.values()), *others]

    def _free_gpu(self) -> int | None:
        return self.gpus.pick(self._used_gpus, self.launcher.slots())

    def _is_gpu_missing(self) -> bool:
        return self.gpus.is_missing(self._used_gpus, self.launcher.slots())

    def _pools(self) -> GpuPools | None:
        return self.gpus.pools(self._used_gpus, self.launcher.slots())

    def _spec(self, run: Run) -> LaunchSpec:
        folder = RunDir(self.settings.runs / str(run.id))
        return LaunchSpec(
            run_id=_id(run),
            attempt=run.attempt,
            folder=folder,
            gpu=run.gpu,
            packages=run.recipe.packages,
        )


def _id(run: Run) -> int:
    assert run.id is not None  # noqa: S101 -- an unflushed row is a bug
    return run.id
