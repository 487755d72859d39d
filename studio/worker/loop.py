"""The worker: claim a run, have it launched, follow what it says, settle it. Then again.

All the worker knows is in the database and the run folders, so it may be killed anywhere: the
next one finds the attempts that still go on and follows them.
"""

import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass, field

from sqlalchemy import Engine

from studio import desk
from studio.db.changes import Changes, watched
from studio.db.session import reading, unit_of_work
from studio.db.states import Ask, RunStatus
from studio.db.tables import Run, Worker
from studio.errors import StudioError
from studio.events import Failed
from studio.hardware import Hardware, detect
from studio.rundir import RunDir
from studio.services import attempts, control, folders, models, queue, runs, trash, workers
from studio.services.attempts import LeaseLostError
from studio.services.obituaries import End
from studio.settings import Settings
from studio.worker import cgroups, prepare
from studio.worker.followed import Followed
from studio.worker.launch import Launcher, LaunchSpec
from studio.worker.local import Local
from studio.worker.messenger import Messenger
from studio.worker.post import Post
from studio.worker.speaker import Speaker
from studio.worker.sweeper import Sweeper
from studio.worker.trades import Commands, Trades
from studio.worker.warm import Warm

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
LOOK_SECONDS = 0.02
"""How soon what others commit is seen: a run that was submitted must not wait for a tick."""

BEAT_SECONDS = 5.0
EMPTY_SECONDS = 3600.0
"""How often what has been in the trash for long enough is looked for."""


def _name() -> str:
    return f"worker-{os.getpid()}-{secrets.token_hex(2)}"


@dataclass(slots=True)
class Loop:
    engine: Engine
    settings: Settings
    launcher: Launcher
    hardware: Hardware = field(default_factory=detect)
    commands: Commands = field(default_factory=Commands)
    name: str = field(default_factory=_name)
    followed: dict[int, Followed] = field(default_factory=dict)
    trades: Trades = field(init=False)
    sweeper: Sweeper = field(init=False)
    speaker: Speaker = field(init=False)
    _unlaunched: dict[int, Failed] = field(default_factory=dict)
    _beat_at: float = float("-inf")
    _emptied_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.trades = Trades(self.engine, self.settings, self.commands)
        self.sweeper = Sweeper(self.engine, self.settings.cache / "sweeps")
        self.speaker = Speaker(self.settings)

    @classmethod
    def local(cls, engine: Engine, settings: Settings) -> "Loop":
        launcher = Local(
            wanted_slots=settings.slots,
            groups=cgroups.find(),
            warm=Warm(settings),
            memory_limit=settings.run_memory_bytes,
        )
        return cls(engine, settings, launcher)

    @property
    def gpus(self) -> list[int]:
        """The GPUs that runs can be given; none where runs train on the processor."""
        on_gpu = self.hardware.device == "cuda"
        return [gpu.index for gpu in self.hardware.gpus] if on_gpu else []

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop; then leave what trains to the next worker, or drain it."""
        self.adopt(alone=True)
        self.launcher.begin()
        log.info("worker_started", extra={"slots": self.launcher.slots()})
        messenger = Messenger(self.engine, self.settings)
        shown = Post(desk.path(self.settings.home), desk.MODULE)
        with watched(self.engine) as changes:
            while not stop.is_set():
                messenger.tend(stop)
                shown.tend()
                self._tend_speaker()
                self._try_tick(takes=True)
                _rest(stop, changes)
        shown.end()
        self.speaker.end()
        if self.settings.on_stop == "drain":
            self._drain()
        self.launcher.end()
        with unit_of_work(self.engine) as db:
            workers.retire(db, self.name)
        log.info("worker_stopped", extra={"left_running": len(self.followed)})

    def adopt(self, *, alone: bool = False) -> None:
        """Take over what nobody looks after: what goes on, what has ended, what was half made.

        A worker that is alone on its folder need not wait for the leases of those before it.
        """
        with unit_of_work(self.engine) as db:
            for run in attempts.abandoned(db, self.name, alone=alone):
                owner = attempts.take_over(run, self.name)
                spec = self._spec(run)
                run.handle = self.launcher.adopt(spec, run.handle)
                if run.handle:
                    self.followed[_id(run)] = Followed(owner, run.handle, spec.folder, run.gpu)
                    log.info("run_adopted", extra={"run_id": run.id, "handle": run.handle})
                else:
                    attempts.give_back(db, run)
        if alone:
            self.trades.adopt()

    def tick(self, *, takes: bool = True) -> None:
        """Do once all that is to be done now."""
        self._beat()
        self._fail_unlaunched()
        self.launcher.tend()
        for run_id, followed in list(self.followed.items()):
            self._follow(run_id, followed)
        self.trades.follow()
        self.speaker.notice.tend(self.engine, self.name)
        while takes and self._take_next():
            pass
        if takes:
            self.trades.take(self._free_slots, self._free_gpu)
            self.sweeper.tend()

    def _free_slots(self) -> int:
        with reading(self.engine) as db:
            return max(0, self._slots - queue.used(db, self.name))

    @property
    def _slots(self) -> int:
        """The slots that runs may have: those that no other work has."""
        return self.launcher.slots() - self.trades.slots - self.speaker.slots

    def _tend_speaker(self) -> None:
        self.speaker.tend(self._free_slots, self._free_gpu)
        if self.speaker.slots:
            with reading(self.engine) as db:
                wanted = max(queue.wanted(db), self.trades.wanted(db))
                if wanted and queue.used(db, self.name) + wanted > self._slots:
                    self.speaker.make_room()

    def _try_tick(self, *, takes: bool) -> None:
        try:
            self.tick(takes=takes)
        except (
            Exception
        ):  # the queue must go on, whatever befell one run; the next tick tries again
            log.exception("tick_failed")

    def _drain(self) -> None:
        """Have each run write a checkpoint and leave, and wait in the queue for a next worker."""
        with unit_of_work(self.engine) as db:
            for run_id in self.followed:
                control.drain(db, run_id)
        pause, end = threading.Event(), time.monotonic() + self.settings.save_grace_seconds
        while self.followed and time.monotonic() < end:
            self._try_tick(takes=False)
            pause.wait(TICK_SECONDS)

    def _beat(self) -> None:
        if time.monotonic() - self._beat_at < BEAT_SECONDS:
            return
        self._beat_at = time.monotonic()
        with unit_of_work(self.engine) as db:
            slots = self.launcher.slots()
            facts = workers.HARDWARE.dump_python(self.hardware, mode="json")
            workers.beat(db, Worker(name=self.name, pid=os.getpid(), slots=slots, hardware=facts))
            attempts.extend(db, self.name)
            if time.monotonic() - self._emptied_at > EMPTY_SECONDS:
                self._emptied_at = time.monotonic()
                trash.empty(db, self.settings.runs)
        self.adopt()

    def _follow(self, run_id: int, followed: Followed) -> None:
        # Asked before reading: what a process says last is in the file before it is gone.
        end = self.launcher.observe(followed.handle)
        if end is None and not self._has_news(run_id, followed):
            followed.watch(self.launcher, self.settings.hang_seconds)
            return
        try:
            run = self._read_on(run_id, followed, end)
        except LeaseLostError as error:
            log.warning("lease_lost", extra={"run_id": run_id, "reason": str(error)})
            del self.followed[run_id]
            return
        if run.status is RunStatus.STOPPING:
            followed.ask(run.asked or Ask.CANCEL, self.launcher, self.settings)
        if end is not None:
            del self.followed[run_id]
            log.info("run_ended", extra={"run_id": run_id, "status": run.status.value})

    def _has_news(self, run_id: int, followed: Followed) -> bool:
        """Whether the file has grown or a person asked for something; no write lock is taken."""
        with reading(self.engine) as db:
            run = runs.get(db, run_id)
        is_ours = (run.worker, run.attempt) == (self.name, followed.owner.attempt)
        is_asked = run.status is RunStatus.STOPPING
        return is_asked or not is_ours or followed.has_news(run.events_offset)

    def _read_on(self, run_id: int, followed: Followed, end: End | None) -> Run:
        with unit_of_work(self.engine) as db:
            run = attempts.owned(db, run_id, followed.owner)
            was, events = run.status, followed.folder.events
            attempts.follow(db, run, *events.read(run.events_offset))
            if end is not None:
                attempts.settle(db, run, followed.witness(end))
            if run.status is RunStatus.SUCCEEDED and was is not run.status:
                models.add_from_run(db, run, followed.folder.artifacts)
        return run

    def _take_next(self) -> bool:
        """Start the next queued run. Return whether there was one."""
        with reading(self.engine) as db:
            if not queue.waiting(db):
                return False
        with unit_of_work(self.engine) as db:
            # A run that was paused may wait again before its process is quite gone.
            run = queue.claim(db, self.name, self._slots, besides=self.followed)
        if run is not None:
            self._launch(_id(run))
        return run is not None

    def _launch(self, run_id: int) -> None:
        try:
            with folders.room(), unit_of_work(self.engine) as db:
                run = runs.get(db, run_id)
                run.gpu = self._free_gpu()
                runs.confirm_precision(db, run, self.hardware)
                spec = prepare.ready(db, run, self._spec(run), self.settings)
                handle = self.launcher.submit(spec)
                owner = attempts.Owner(self.name, run.attempt)
                self.followed[run_id] = Followed(owner, handle, spec.folder, run.gpu)
                attempts.launched(run, handle)
        except (StudioError, OSError) as error:
            self._give_up(run_id, error)

    def _give_up(self, run_id: int, error: StudioError | OSError) -> None:
        told = error if isinstance(error, StudioError) else prepare.told(error)
        log.error("run_not_launched", extra={"run_id": run_id}, exc_info=error)
        if started := self.followed.pop(run_id, None):
            self.launcher.kill(started.handle)
        self._unlaunched[run_id] = Failed(code=told.code, message=told.message, hint=told.hint)
        self._fail_unlaunched()

    def _fail_unlaunched(self) -> None:
        """Tell why runs were not launched; on a full disk, again and again until it is written."""
        for run_id, why in list(self._unlaunched.items()):
            with unit_of_work(self.engine) as db:
                run = runs.get(db, run_id)
                attempts.fail(db, run, why)
                attempts.settle(db, run, End())
            del self._unlaunched[run_id]

    def _free_gpu(self) -> int | None:
        used = {one.gpu for one in self.followed.values()} | self.trades.gpus | self.speaker.gpus
        return next((gpu for gpu in self.gpus if gpu not in used), None)

    def _spec(self, run: Run) -> LaunchSpec:
        folder = RunDir(self.settings.runs / str(run.id))
        return LaunchSpec(
            run_id=_id(run),
            attempt=run.attempt,
            folder=folder,
            gpu=run.gpu,
            packages=run.recipe.packages,
        )


def _rest(stop: threading.Event, changes: Changes) -> None:
    """Wait for the next tick, or for another process to commit something."""
    changes.happened()  # What this process has just committed is no news.
    until = time.monotonic() + TICK_SECONDS
    while time.monotonic() < until and not stop.wait(LOOK_SECONDS) and not changes.happened():
        pass


def _id(run: Run) -> int:
    assert run.id is not None  # noqa: S101 -- a row that was never flushed is a bug of ours
    return run.id
