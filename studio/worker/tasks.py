"""Schedule a worker's exports and background tasks next to its runs."""

import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel
from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError
from sqlmodel import Session, select

from studio import gpu_detection
from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Export, Task, TaskBase
from studio.errors import StudioError, UnavailableError
from studio.hardware import Hardware, free_memory
from studio.protocols.events import Event, Failed
from studio.protocols.run_dir import ExportDir, RunDir, WorkDir
from studio.protocols.tasks import FILES_DIR, TASK_DEFINITIONS, TaskDir, TaskSpec
from studio.recipe.exports import ExportSpec
from studio.services.accounts import secrets
from studio.services.datasets import token_stats
from studio.services.evaluations import answer_sets, score_sets
from studio.services.exports import exports
from studio.services.queue import concurrent_exports, task_results
from studio.services.storage import atomic_dirs
from studio.services.tasks import exit_diagnosis, tasks
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.attempt_monitor import add_exit_evidence, has_new_events
from studio.worker.fault_isolation import FaultIsolation, catch_errors, is_shortage
from studio.worker.processes import process
from studio.worker.processes.process import Process

log = logging.getLogger(__name__)

W = TypeVar("W", bound=TaskBase)


class TaskKind(Protocol[W]):
    """What differs between kinds of work."""

    @property
    def table(self) -> type[W]: ...

    def display_name(self, work: W) -> str:
        """Return its name for use in a sentence: "export"."""

    def folder(self, work: W) -> WorkDir: ...

    def spec(self, work: W) -> BaseModel:
        """Return the job for its process."""

    @property
    def niceness(self) -> int:
        """Niceness of its process when it has no slot; 0 means normal priority."""

    def takes_slot(self, db: Session, work: W) -> bool:
        """Whether it occupies a slot that a run could use."""

    def may_start(self, db: Session, work: W, *, on_device: bool) -> bool:
        """Whether it may start now: in a slot that a run could use, or without one."""

    def lane(self, work: W) -> str:
        """Return its lane, in which it waits for work of the same lane only."""

    def secrets(self, db: Session, work: W) -> dict[str, str]:
        """Return secrets for its process's environment.

        Raises:
            UnavailableError: they cannot be read.

        """

    def follow(self, db: Session, work: W, events: list[Event], offset: int) -> None:
        """Update its row from new events."""

    def notify_end(self, db: Session, work: W) -> AbstractContextManager[None]:
        """Notify those concerned if it ends inside the block."""


MAX_TASK_KILL_TICKS = 25
"""Ticks after which killed work is closed, whatever its process does."""


@dataclass(slots=True)
class MonitoredTask:
    """A task whose process this worker monitors."""

    process: Process
    folder: WorkDir
    gpu: int | None
    on_device: bool
    lane: str
    failure: Failed | None = None
    """Why it can no longer be followed; it is killed."""
    kills: int = 0
    """How many ticks it has been killed for."""


@dataclass(slots=True)
class TaskProcesses(Generic[W]):
    engine: Engine
    settings: Settings
    kind: TaskKind[W]
    isolation: FaultIsolation
    command: tuple[str, ...]
    kept_files: tuple[str, ...] = ()
    """Names of files that a retry keeps from the try before."""
    monitored: dict[int, MonitoredTask] = field(default_factory=dict)

    @property
    def gpus(self) -> set[int | None]:
        return {monitored_task.gpu for monitored_task in self.monitored.values()}

    @property
    def slots(self) -> int:
        """How many slots are occupied that a run could use."""
        return sum(monitored_task.on_device for monitored_task in self.monitored.values())

    def count_without_slot(self, lane: str) -> int:
        """Return how much work of a lane runs without a device."""
        return sum(task.lane == lane and not task.on_device for task in self.monitored.values())

    def adopt(self) -> None:
        """Take over an earlier worker's tasks, whether their processes are alive or gone."""
        with self.isolation.step("adopt"):
            with read_session(self.engine) as db:
                live_ids = [_id(row) for row in tasks.list_live(db, self.kind.table)]
            for work_id in live_ids:
                with self.isolation.step("adopt", self._subject(work_id)):
                    self._adopt(work_id)

    def _adopt(self, work_id: int) -> None:
        with unit_of_work(self.engine) as db:
            row = db.get_one(self.kind.table, work_id)
            if running := process.find_process(row.pid, row.pid_started):
                self._watch(row, running, on_device=self.kind.takes_slot(db, row))
                return
            try:
                self._apply_events(db, row, ProcessExit())
            except (StudioError, OSError) as error:
                if is_shortage(error):
                    raise
                self._fail(
                    db, row, exit_diagnosis.monitoring_failure(error, self.kind.display_name(row))
                )

    def follow(self) -> None:
        """Update tasks; end those that were deleted or cancelled, or that cannot be followed."""
        for work_id, task in list(self.monitored.items()):
            subject = self._subject(work_id)
            if task.failure is None:
                with self.isolation.step("follow", subject):
                    self._follow(work_id, task)
                if error := self.isolation.final_error("follow", subject):
                    task.failure = exit_diagnosis.monitoring_failure(error, self.noun)
            if task.failure is not None:
                with self.isolation.step("end", subject):
                    self._kill_and_fail(work_id, task, task.failure)
            if work_id not in self.monitored:
                self.isolation.forget(subject)

    @property
    def noun(self) -> str:
        return "export" if self.kind.table is Export else "task"

    def _subject(self, work_id: int) -> str:
        return f"{self.noun} {work_id}"

    def _follow(self, work_id: int, task: MonitoredTask) -> None:
        # Check before reading: a process writes its last event before it exits.
        alive = task.process.is_alive
        with read_session(self.engine) as db:
            row = db.get(self.kind.table, work_id)
        if row is None or row.status is TaskStatus.CANCELLED:
            self._end_and_remove(work_id, task)
        elif has_new_events(task.folder, row.events_offset) or not alive:
            self._update(work_id, task, alive=alive)

    def _kill_and_fail(self, work_id: int, task: MonitoredTask, failure: Failed) -> None:
        """Kill work that cannot be followed, then mark it as failed."""
        task.kills += 1
        if task.process.is_alive and task.kills < MAX_TASK_KILL_TICKS:
            task.process.kill()
            return
        with unit_of_work(self.engine) as db:
            if row := db.get(self.kind.table, work_id):
                # A failing notification must not keep the slot occupied.
                is_stuck = self.isolation.error("end", self._subject(work_id)) is not None
                self._fail(db, row, failure, tells=not is_stuck)
        del self.monitored[work_id]

    def _fail(self, db: Session, row: W, failure: Failed, *, tells: bool = True) -> None:
        log.error("work_ended_by_worker", extra=self._log_facts(row) | {"reason": failure.message})
        with self.kind.notify_end(db, row) if tells else nullcontext():
            row.pid = row.pid_started = None
            if not row.status.is_final:
                tasks.fail_work(row, failure)

    def take_next(self, gpu: int | None = None, *, on_device: bool, lane: str = "") -> bool:
        """Start the next work that waits for a device, or for none. Return whether it did."""
        with read_session(self.engine) as db:
            if not self.has_waiting(db, on_device=on_device, lane=lane):
                return False
        with unit_of_work(self.engine) as db:
            row = self._next(db, on_device=on_device, lane=lane)
            if row is not None:
                tasks.start_work(row)
                self._launch(db, row, gpu, on_device=on_device)
        return row is not None

    def has_waiting(self, db: Session, *, on_device: bool, lane: str = "") -> bool:
        """Whether work is waiting for a device, or for none."""
        return self._next(db, on_device=on_device, lane=lane) is not None

    def _next(self, db: Session, *, on_device: bool, lane: str) -> W | None:
        waiting = tasks.list_waiting(db, self.kind.table)
        # Cancelled work that is queued again waits until its first process has exited.
        free = (
            row for row in waiting if _id(row) not in self.monitored and self.kind.lane(row) == lane
        )
        may_start = self.kind.may_start
        return next((row for row in free if may_start(db, row, on_device=on_device)), None)

    def _launch(self, db: Session, row: W, gpu: int | None, *, on_device: bool) -> None:
        with catch_errors() as errors:
            secrets = self.kind.secrets(db, row)
            started = process.start(
                self._prepare(row),
                gpu=gpu,
                command=self.command,
                besides=self.settings.environment
                | secrets
                | ({} if on_device else gpu_detection.hide_gpus()),
            )
            if not on_device:
                started.set_niceness(self.kind.niceness)
            row.pid, row.pid_started, row.gpu = started.pid, started.started, gpu
            self._watch(row, started, on_device=on_device)
        for error in errors:
            if isinstance(error.__cause__, DatabaseError):
                raise error
            log.error("work_not_launched", extra=self._log_facts(row), exc_info=error)
            explained = error if isinstance(error, StudioError) else UnavailableError(f"{error}.")
            failure = Failed(code=explained.code, message=explained.message, hint=explained.hint)
            with self.kind.notify_end(db, row):
                tasks.fail_work(row, failure)
        db.flush()

    def _watch(self, row: W, started: Process, *, on_device: bool) -> None:
        self.monitored[_id(row)] = MonitoredTask(
            started, self.kind.folder(row), row.gpu, on_device, self.kind.lane(row)
        )

    def _prepare(self, row: W) -> WorkDir:
        """Prepare the folder; of an earlier try, only the kept files remain."""
        folder = self.kind.folder(row)
        with atomic_dirs.explain_disk_full(), atomic_dirs.staging_dir(folder.root.parent) as stage:
            spec = self.kind.spec(row).model_dump_json(indent=2)
            (stage / folder.job.name).write_text(spec, encoding="utf-8")
            for name in self.kept_files:
                if (folder.root / name).exists():
                    (folder.root / name).replace(stage / name)
            atomic_dirs.move_into_place(stage, folder.root)
        return folder

    def _update(self, work_id: int, task: MonitoredTask, *, alive: bool) -> None:
        with unit_of_work(self.engine) as db:
            row = db.get(self.kind.table, work_id)
            if row is None:
                return
            end = None if alive else ProcessExit(exit_code=task.process.exit_code)
            self._apply_events(db, row, end)
        if not alive:
            del self.monitored[work_id]
            log.info("work_ended", extra=self._log_facts(row))

    def _apply_events(self, db: Session, row: W, end: ProcessExit | None) -> None:
        folder = self.kind.folder(row)
        with self.kind.notify_end(db, row):
            self.kind.follow(db, row, *folder.events.read(row.events_offset))
            if end is not None:
                tasks.close_exited(row, add_exit_evidence(folder, end), self.kind.display_name(row))

    def _end_and_remove(self, work_id: int, task: MonitoredTask) -> None:
        """Kill the process of deleted or cancelled work, and remove what it has written since."""
        if task.process.is_alive:
            task.process.kill()
            return
        with unit_of_work(self.engine) as db:
            if row := db.get(self.kind.table, work_id):
                tasks.close_exited(row, ProcessExit(), self.kind.display_name(row))
            known_ids = {str(one_id) for one_id in db.exec(select(self.kind.table.id))}
        del self.monitored[work_id]
        shutil.rmtree(task.folder.root, ignore_errors=True)
        atomic_dirs.remove_orphans(task.folder.root.parent, known_ids)

    def _log_facts(self, row: W) -> dict[str, object]:
        return {"work": self.kind.display_name(row), "id": row.id, "status": row.status.value}


def _id(row: TaskBase) -> int:
    assert row.id is not None  # noqa: S101 -- an unflushed row is a bug
    return row.id


@dataclass(frozen=True, slots=True)
class ExportKind:
    settings: Settings
    hardware: Hardware
    free_memory: Callable[[], int] = free_memory
    table: type[Export] = Export
    niceness: int = 5

    def display_name(self, _export: Export) -> str:
        return exports.PROCESS_NAME

    def folder(self, export: Export) -> ExportDir:
        return RunDir(self.settings.runs / str(export.run_id)).export(export.id or 0)

    def spec(self, export: Export) -> ExportSpec:
        run = RunDir(self.settings.runs / str(export.run_id))
        fields = {"run": run.root, "kind": export.kind, "dtype": export.dtype}
        quantiser = exports.find_llama_quantize(self.settings.llama_quantize)
        return ExportSpec.model_validate(fields | {"llama_quantize": quantiser})

    def takes_slot(self, db: Session, export: Export) -> bool:
        return concurrent_exports.takes_slot(db, export, self.hardware)

    def may_start(self, db: Session, export: Export, *, on_device: bool) -> bool:
        is_small = concurrent_exports.is_small(db, export, self.hardware)
        if on_device:
            return self.hardware.device == "cuda" or not is_small
        return is_small and concurrent_exports.fits_in_memory(
            db, export, self.hardware, self.free_memory()
        )

    def lane(self, _export: Export) -> str:
        return ""

    def secrets(self, _db: Session, _export: Export) -> dict[str, str]:
        return {}

    def follow(self, _db: Session, export: Export, events: list[Event], offset: int) -> None:
        exports.apply_events(export, events, offset)

    def notify_end(self, _db: Session, _export: Export) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True, slots=True)
class BackgroundTaskKind:
    settings: Settings
    table: type[Task] = Task
    niceness: int = 0

    def display_name(self, task: Task) -> str:
        return task.kind

    def folder(self, task: Task) -> TaskDir:
        return tasks.task_dir(self.settings.tasks, task)

    def spec(self, task: Task) -> TaskSpec:
        return TaskSpec(kind=task.kind, params=task.params)

    def takes_slot(self, _db: Session, task: Task) -> bool:
        return tasks.needs_device(task)

    def may_start(self, _db: Session, task: Task, *, on_device: bool) -> bool:
        return tasks.needs_device(task) is on_device

    def lane(self, task: Task) -> str:
        return tasks.lane(task)

    def secrets(self, db: Session, task: Task) -> dict[str, str]:
        names = TASK_DEFINITIONS[task.kind].required_secrets(task.params)
        return (
            secrets.settings_with_required(db, self.settings, names).secret_environment(names)
            if names
            else {}
        )

    def follow(self, _db: Session, task: Task, events: list[Event], offset: int) -> None:
        tasks.apply_events(task, events, offset, self.folder(task))

    def notify_end(self, db: Session, task: Task) -> AbstractContextManager[None]:
        return task_results.notify_on_end(db, task)


@dataclass(frozen=True, slots=True)
class TaskCommands:
    """The commands that do the work; the folder is appended."""

    export: tuple[str, ...] = process.EXPORTER
    task: tuple[str, ...] = process.TASK_RUNNER


class TaskScheduler:
    """Schedules every kind of work other than runs."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        isolation: FaultIsolation,
        commands: TaskCommands,
        hardware: Hardware,
    ) -> None:
        self.isolation = isolation
        shared = (engine, settings)
        export_kind = ExportKind(settings, hardware)
        self.exports = TaskProcesses(*shared, export_kind, isolation, commands.export)
        self.tasks = TaskProcesses(
            *shared, BackgroundTaskKind(settings), isolation, commands.task, (FILES_DIR,)
        )

    @property
    def gpus(self) -> set[int | None]:
        return self.exports.gpus | self.tasks.gpus

    @property
    def slots(self) -> int:
        """How many slots are occupied that a run could use."""
        return self.exports.slots + self.tasks.slots

    def slots_needed(self, db: Session) -> int:
        """Return how many slots the next waiting export or task needs that a run could use."""
        return int(
            any(
                processes.has_waiting(db, on_device=True)
                for processes in (self.exports, self.tasks)
            )
        )

    @property
    def is_busy(self) -> bool:
        """Whether a process is running."""
        return bool(self.exports.monitored or self.tasks.monitored)

    def adopt(self) -> None:
        """Take over from an earlier worker, and clean up: this one is alone on its folder."""
        self.exports.adopt()
        self.tasks.adopt()
        with self.isolation.step("tidy"), unit_of_work(self.tasks.engine) as db:
            token_stats.cleanup(db)
            answer_sets.delete_unused(db)
            score_sets.delete_unused(db)
            tasks.cleanup(db, self.tasks.settings.tasks)

    def follow(self) -> None:
        self.exports.follow()
        self.tasks.follow()

    def start_waiting(self, has_slot: Callable[[], int], gpu: Callable[[], int | None]) -> None:
        """Start what there is room for. Runs come first: only what no run waits for is used."""
        is_waiting = False
        with self.isolation.step("start", "tasks"), read_session(self.tasks.engine) as db:
            is_waiting = any(
                tasks.list_waiting(db, processes.kind.table)
                for processes in (self.exports, self.tasks)
            )
        if not is_waiting:
            return
        for processes in (self.exports, self.tasks):
            with self.isolation.step("start", f"{processes.noun}s on a device"):
                while has_slot() and processes.take_next(gpu(), on_device=True):
                    pass
        with self.isolation.step("start", "exports beside training"):
            while (
                self._exports_beside_training < concurrent_exports.MAX_EXPORTS
                and self.exports.take_next(on_device=False)
            ):
                pass
        for lane, most in concurrent_exports.MAX_BY_LANE.items():
            with self.isolation.step("start", f"{lane} tasks".strip()):
                while self.tasks.count_without_slot(lane) < most and self.tasks.take_next(
                    on_device=False, lane=lane
                ):
                    pass

    @property
    def _exports_beside_training(self) -> int:
        return len(self.exports.monitored) - self.exports.slots
