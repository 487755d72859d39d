"""The worker: claim a run, start its process, follow what it says, settle it. Then again.

All the worker knows is in the database and the run folders, so it may be killed anywhere: the
next one finds the training processes that are still alive and goes on following them.
"""

import logging
import os
import threading
import time
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import reading, unit_of_work
from studio.db.tables import Run, RunStatus, Worker
from studio.errors import StudioError, UnavailableError
from studio.events import Failed
from studio.hardware import Hardware, detect
from studio.recipe import yaml
from studio.rundir import JobSpec, RunDir
from studio.services import datasets, folders, manifests, models, queue, runs
from studio.settings import Settings
from studio.worker import process
from studio.worker.exports import Exports
from studio.worker.process import Process

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
BEAT_SECONDS = 5.0


@dataclass(slots=True)
class Followed:
    """A run whose process this worker watches."""

    process: Process
    gpu: int | None
    told_to_stop_at: float | None = None


@dataclass(slots=True)
class Loop:
    engine: Engine
    settings: Settings
    command: tuple[str, ...] = process.RUNNER
    hardware: Hardware = field(default_factory=detect)
    exporter: tuple[str, ...] = process.EXPORTER
    followed: dict[int, Followed] = field(default_factory=dict)
    _unlaunched: dict[int, Failed] = field(default_factory=dict)
    exports: Exports = field(init=False)
    _beat_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.exports = Exports(self.engine, self.settings, self.exporter)

    @property
    def name(self) -> str:
        return f"worker-{os.getpid()}"

    @property
    def gpus(self) -> list[int]:
        """The GPUs that runs can be given; none where runs train on the processor."""
        on_gpu = self.hardware.device == "cuda"
        return [gpu.index for gpu in self.hardware.gpus] if on_gpu else []

    @property
    def slots(self) -> int:
        return self.settings.slots or max(1, len(self.gpus))

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop. Training processes are left alone: the next worker follows."""
        self.adopt()
        log.info("worker_started", extra={"slots": self.slots})
        while not stop.is_set():
            try:
                self.tick()
            except (
                Exception
            ):  # the queue must go on, whatever befell one run; the next tick tries again
                log.exception("tick_failed")
            stop.wait(TICK_SECONDS)
        with unit_of_work(self.engine) as db:
            queue.retire(db, self.name)
        log.info("worker_stopped", extra={"left_running": len(self.followed)})

    def adopt(self) -> None:
        """Take over what an earlier worker left: live processes, dead ones, half-made ones."""
        with unit_of_work(self.engine) as db:
            for run in runs.live(db):
                alive = process.found(run.pid, run.pid_started)
                if alive:
                    self.followed[_id(run)] = Followed(alive, run.gpu)
                    log.info("run_adopted", extra={"run_id": run.id, "pid": run.pid})
                elif run.pid is None and run.status is RunStatus.STARTING:
                    queue.give_back(db, run)
                else:
                    self._read(db, run)
                    queue.settle(db, run, None)
        self.exports.adopt()

    def tick(self) -> None:
        """Do once all that is to be done now."""
        self._beat()
        self._fail_unlaunched()
        for run_id, followed in list(self.followed.items()):
            self._follow(run_id, followed)
        self.exports.follow()
        while self._free_slots and self._take_next():
            pass
        # Training goes first; an export takes a slot that no run waits for.
        while self._free_slots and self.exports.take_next(self._free_gpu()):
            pass

    @property
    def _free_slots(self) -> int:
        return max(0, self.slots - len(self.followed) - len(self.exports.followed))

    def _beat(self) -> None:
        if time.monotonic() - self._beat_at < BEAT_SECONDS:
            return
        self._beat_at = time.monotonic()
        with unit_of_work(self.engine) as db:
            queue.beat(db, Worker(name=self.name, pid=os.getpid(), slots=self.slots))

    def _follow(self, run_id: int, followed: Followed) -> None:
        # Asked before reading: what a process says last is in the file before it is gone.
        alive = followed.process.is_alive
        if alive and not self._has_news(run_id):
            return
        with unit_of_work(self.engine) as db:
            run = runs.get(db, run_id)
            self._read(db, run)
            if not alive:
                queue.settle(db, run, followed.process.exit_code)
        if run.status is RunStatus.STOPPING:
            self._stop(followed)
        if not alive:
            del self.followed[run_id]
            log.info("run_ended", extra={"run_id": run_id, "status": run.status.value})

    def _has_news(self, run_id: int) -> bool:
        """Whether the file has grown or a person asked for something; no write lock is taken."""
        with reading(self.engine) as db:
            run = runs.get(db, run_id)
        events = self._folder(run_id).events.path
        grown = events.exists() and events.stat().st_size > run.events_offset
        return grown or run.status is RunStatus.STOPPING

    def _read(self, db: Session, run: Run) -> None:
        was, folder = run.status, self._folder(_id(run))
        queue.follow(db, run, *folder.events.read(run.events_offset))
        if run.status is RunStatus.SUCCEEDED and was is not run.status:
            models.add_from_run(db, run, folder.artifacts)

    def _stop(self, followed: Followed) -> None:
        """Ask once; insist when the time given for saving is over."""
        now = time.monotonic()
        if followed.told_to_stop_at is None:
            followed.told_to_stop_at = now
            followed.process.terminate()
        elif now - followed.told_to_stop_at > self.settings.stop_grace_seconds:
            followed.process.kill()

    def _take_next(self) -> bool:
        """Start the next queued run. Return whether there was one."""
        with reading(self.engine) as db:
            if not queue.waiting(db):
                return False
        with unit_of_work(self.engine) as db:
            run = queue.claim(db, self.name, self.slots)
        if run is not None:
            self._launch(_id(run))
        return run is not None

    def _launch(self, run_id: int) -> None:
        try:
            with folders.room(), unit_of_work(self.engine) as db:
                run = runs.get(db, run_id)
                folder = self._prepare(db, run)
                run.gpu = self._free_gpu()
                started = process.start(folder, gpu=run.gpu, command=self.command)
                self.followed[run_id] = Followed(started, run.gpu)
                queue.launched(run, started.pid, started.started)
        except (StudioError, OSError) as error:
            self._give_up(run_id, error)

    def _prepare(self, db: Session, run: Run) -> RunDir:
        """Write the run's folder: the recipe, and what its names mean on this machine."""
        folder = self._folder(_id(run))
        folder.root.mkdir(parents=True, exist_ok=True)
        train, validation = datasets.files(
            self.settings.datasets, datasets.require(db, run.recipe.dataset)
        )
        spec = JobSpec(
            run_id=_id(run),
            name=run.name,
            model=models.require(db, run.recipe.base_model),
            train=train,
            validation=validation,
            attempt=run.attempt,
            dataset=manifests.facts_of(db, run.recipe.dataset),
        )
        folder.recipe.write_text(yaml.dump(run.recipe), encoding="utf-8")
        folder.job.write_text(spec.model_dump_json(indent=2), encoding="utf-8")
        return folder

    def _give_up(self, run_id: int, error: StudioError | OSError) -> None:
        told = error if isinstance(error, StudioError) else UnavailableError(f"{error}.")
        log.error("run_not_launched", extra={"run_id": run_id}, exc_info=error)
        if started := self.followed.pop(run_id, None):
            started.process.kill()
        self._unlaunched[run_id] = Failed(code=told.code, message=told.message, hint=told.hint)
        self._fail_unlaunched()

    def _fail_unlaunched(self) -> None:
        """Tell why runs were not launched; on a full disk, again and again until it is written."""
        for run_id, why in list(self._unlaunched.items()):
            with unit_of_work(self.engine) as db:
                queue.fail(db, runs.get(db, run_id), why)
            del self._unlaunched[run_id]

    def _free_gpu(self) -> int | None:
        used = {followed.gpu for followed in self.followed.values()} | self.exports.gpus
        return next((gpu for gpu in self.gpus if gpu not in used), None)

    def _folder(self, run_id: int) -> RunDir:
        return RunDir(self.settings.runs / str(run_id))


def _id(run: Run) -> int:
    assert run.id is not None  # noqa: S101 -- a row that was never flushed is a bug of ours
    return run.id
