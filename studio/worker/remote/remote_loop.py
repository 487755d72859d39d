"""The loop of a worker for a studio on another machine: like the worker's loop, without a database.

The studio's queue and leases stay the truth. While the studio is away, training goes on; what it
has missed is sent when it is back.
"""

import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import studio
from studio import files
from studio.client.errors import ApiError
from studio.db.states import RunCommand
from studio.hardware import Hardware, detect
from studio.protocols.remote_worker import (
    NAME_PATTERN,
    NAME_PREFIX,
    AttemptRef,
    ClaimRequest,
    FailingWorkerStep,
    Heartbeat,
    HeartbeatAnswer,
)
from studio.services.storage import atomic_dirs
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.fault_isolation import FaultIsolation
from studio.worker.gpus import MachineGpus
from studio.worker.hardware_sampler import HardwareSampler
from studio.worker.processes import cgroups
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.remote import remote_attempt
from studio.worker.remote.connection import FencedError, StudioAwayError, StudioConnection
from studio.worker.remote.courier import Courier, launch_spec
from studio.worker.remote.remote_attempt import AttemptRecord, RemoteAttempt

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
BEAT_SECONDS = 2.0
"""How often the worker says that it is alive, and hears what its runs are asked for."""

CLAIM_SECONDS = 1.0
_JOIN_SECONDS = 20.0
"""How long a courier may take to finish the call it is making when the worker stops."""

_NAME_FILE = "remote_worker"


def worker_name(settings: Settings) -> str:
    """Return the name of this home's worker; it keeps it, so that its runs stay its own."""
    path = settings.home / _NAME_FILE
    name = path.read_text(encoding="ascii").strip() if path.is_file() else ""
    if not re.fullmatch(NAME_PATTERN, name):
        host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")[:40]
        name = f"{NAME_PREFIX}{host or 'worker'}-{secrets.token_hex(4)}"
        files.replace_text(path, name)
    return name


@dataclass(slots=True)
class RemoteLoop:
    settings: Settings
    connection: StudioConnection
    launcher: LocalLauncher
    hardware: Hardware = field(default_factory=detect)
    couriers: dict[int, Courier] = field(default_factory=dict)
    """By run."""
    isolation: FaultIsolation = field(default_factory=FaultIsolation)
    is_draining: bool = False
    gpus: MachineGpus = field(init=False)
    sampler: HardwareSampler = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    """Stops the couriers: after the loop, if that drains."""
    _beat_at: float = float("-inf")
    _claim_at: float = float("-inf")
    _away_since: float | None = None

    def __post_init__(self) -> None:
        self.gpus = MachineGpus(self.hardware)
        self.sampler = HardwareSampler(self.settings.home)

    @classmethod
    def local(cls, settings: Settings, url: str, token: str) -> "RemoteLoop":
        launcher = LocalLauncher(
            wanted_slots=settings.slots,
            cgroups=cgroups.find_parent(),
            memory_limit=settings.run_memory_bytes,
        )
        connection = StudioConnection.open(worker_name(settings), url, token)
        return cls(settings, connection, launcher)

    @property
    def attempts(self) -> list[RemoteAttempt]:
        return [courier.attempt for courier in self.couriers.values()]

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; then leave runs to the next worker, or drain them.

        Raises:
            ApiError: the studio refuses this worker: its token or its version.

        """
        self.sampler.ensure_running(stop)
        self.adopt()
        log.info("worker_started", extra={"slots": self.launcher.slots()})
        try:
            while not stop.is_set():
                self.tick()
                stop.wait(TICK_SECONDS)
            if self.settings.on_stop == "drain":
                self._drain()
        finally:
            self.close()
        log.info("worker_stopped", extra={"left_running": len(self.couriers)})

    def adopt(self) -> None:
        """Continue what an earlier worker of this home has left."""
        for attempt in remote_attempt.find_left(self.settings, self.connection.worker):
            handle = attempt.record.handle
            if attempt.record.is_prepared:
                spec = launch_spec(attempt, self.settings)
                handle = self.launcher.adopt(spec, handle)
            if handle:
                attempt.set_process(handle)
            self._start(attempt)
            log.info("run_adopted", extra={"run_id": attempt.ref.run_id, "handle": handle})

    def tick(self) -> None:
        """Do all work that is due.

        Raises:
            ApiError: the studio refuses this worker.

        """
        for run_id, courier in list(self.couriers.items()):
            with self.isolation.step("follow", f"run {run_id}"):
                self._watch(run_id, courier)
        now = time.monotonic()
        if now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            self._call("heartbeat", self._beat)
        if now - self._claim_at >= CLAIM_SECONDS and self._may_claim():
            self._claim_at = now
            self._call("start", self._claim)

    def close(self) -> None:
        """Stop the couriers, and leave; runs that train go on."""
        self._stop.set()
        for courier in self.couriers.values():
            courier.attempt.wake.set()
        for courier in self.couriers.values():
            courier.thread.join(_JOIN_SECONDS)
        with self.isolation.step("leave"):
            self.connection.leave()
        self.connection.client.close()

    def _may_claim(self) -> bool:
        used = sum(attempt.record.assignment.slots for attempt in self.attempts)
        is_free = used < self.launcher.slots() and not self.is_draining
        return is_free and self._away_since is None

    def _call(self, step: str, call: Callable[[], None]) -> None:
        """Make a call; note since when the studio is away.

        Raises:
            ApiError: the studio refuses this worker, and it trains nothing.

        """
        refusal = None
        with self.isolation.step(step):
            try:
                call()
            except (StudioAwayError, FencedError) as error:
                if self._away_since is None:
                    self._away_since = time.monotonic()
                    log.warning("studio_away", extra={"reason": str(error)})
            except ApiError as error:
                refusal = error
                # What trains goes on: somebody may give the token back, or upgrade the other side.
                self._away_since = self._away_since or time.monotonic()
                log.error("worker_refused", extra={"reason": error.message})  # noqa: TRY400 -- expected
            else:
                if self._away_since is not None:
                    log.info("studio_back", extra={"seconds": time.monotonic() - self._away_since})
                self._away_since = None
        if refusal and not self.couriers:
            raise refusal

    def _beat(self) -> None:
        if sample := self.sampler.take():
            self.gpus.take_reports(sample.usage)
        told = [attempt.ref for attempt in self.attempts]
        beat = Heartbeat(
            version=studio.__version__,
            slots=self.launcher.slots(),
            hardware=self._described_hardware(),
            failing=[
                FailingWorkerStep(step=one.step, subject=one.subject[:100], error=one.error[:100])
                for one in self.isolation.failing_steps()
            ],
            failures=self.isolation.failures,
            attempts=told,
            is_draining=self.is_draining,
        )
        self._obey(told, self.connection.beat(beat))

    def _obey(self, told: Iterable[AttemptRef], answer: HeartbeatAnswer) -> None:
        self.gpus.keep_from_work(answer.quarantined_gpus)
        owned = {(one.run_id, one.attempt): one for one in answer.attempts}
        refs = {(ref.run_id, ref.attempt) for ref in told}
        for attempt in self.attempts:
            key = (attempt.ref.run_id, attempt.ref.attempt)
            if key in refs and key not in owned and not attempt.is_over:
                attempt.is_fenced = True
            elif key in owned and (command := owned[key].command):
                attempt.command = RunCommand(command)
            attempt.wake.set()

    def _claim(self) -> None:
        pools = self.gpus.pools(
            [attempt.record.assignment.gpu for attempt in self.attempts], self.launcher.slots()
        )
        request = ClaimRequest(
            version=studio.__version__,
            slots=self.launcher.slots(),
            hardware=self._described_hardware(),
            free_gpus=None if pools is None else list(pools.free),
            held=list(self.couriers),
        )
        assignment = self.connection.claim(request).assignment
        if assignment is None or assignment.run_id in self.couriers:
            return
        self._claim_at = float("-inf")  # There may be another one.
        folder = remote_attempt.run_dir(self.settings, assignment.run_id)
        attempt = RemoteAttempt(
            self.connection.worker, folder, AttemptRecord(assignment=assignment)
        )
        attempt.delete()  # what an earlier attempt has left
        with atomic_dirs.explain_disk_full():
            attempt.save()
        self._start(attempt)
        log.info("run_claimed", extra={"run_id": assignment.run_id, "attempt": assignment.attempt})

    def _described_hardware(self) -> dict[str, object]:
        described: dict[str, object] = workers.HARDWARE_ADAPTER.dump_python(
            self.gpus.hardware, mode="json"
        )
        return described

    def _start(self, attempt: RemoteAttempt) -> None:
        courier = Courier(self.connection, attempt, self.launcher, self.settings, self._stop)
        self.couriers[attempt.ref.run_id] = courier
        courier.thread.start()

    def _watch(self, run_id: int, courier: Courier) -> None:
        attempt = courier.attempt
        attempt.watch(self.launcher, self.settings)
        is_running = attempt.process is not None and attempt.exit is None
        if courier.thread.is_alive() or is_running:
            return
        if attempt.is_over or attempt.is_fenced:
            attempt.delete()
            del self.couriers[run_id]
            self.isolation.forget(f"run {run_id}")

    def _drain(self) -> None:
        """Have each run write a checkpoint and return to the queue."""
        self.is_draining, pause = True, threading.Event()
        self._beat_at = float("-inf")
        end = time.monotonic() + self.settings.save_grace_seconds
        while self.couriers and time.monotonic() < end:
            self.tick()
            pause.wait(TICK_SECONDS)
