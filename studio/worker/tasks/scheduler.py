"""Schedule a worker's exports and background tasks next to its runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.tasks import Export, Task
from studio.hardware import Hardware, free_memory
from studio.protocols.events import Event
from studio.protocols.run_dir import ExportDir, RunDir
from studio.protocols.tasks import FILES_DIR, TASK_DEFINITIONS, TaskDir, TaskSpec
from studio.recipe.exports import ExportSpec
from studio.services.accounts import secrets
from studio.services.datasets import token_stats
from studio.services.exports import exports
from studio.services.queue import concurrent_exports, task_results
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.fault_isolation import FaultIsolation
from studio.worker.processes import process
from studio.worker.tasks.task_processes import TaskProcesses


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
        return ExportSpec.model_validate(fields)

    def takes_slot(self, db: Session, export: Export) -> bool:
        return concurrent_exports.takes_slot(db, export, self.hardware)

    def may_start(self, db: Session, export: Export, *, on_device: bool) -> bool:
        is_small = concurrent_exports.is_small(db, export, self.hardware)
        if on_device:
            return self.hardware.device == "cuda" or not is_small
        return is_small and concurrent_exports.fits_in_memory(
            db, export, self.hardware, self.free_memory()
        )

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

    def wanted(self, db: Session) -> int:
        """Return how many slots the next waiting export or task needs that a run could use."""
        return int(
            any(
                processes.has_waiting(db, on_device=True)
                for processes in (self.exports, self.tasks)
            )
        )

    def adopt(self) -> None:
        """Take over from an earlier worker, and clean up: this one is alone on its folder."""
        self.exports.adopt()
        self.tasks.adopt()
        with self.isolation.step("tidy"), unit_of_work(self.tasks.engine) as db:
            token_stats.cleanup(db)
            tasks.cleanup(db, self.tasks.settings.tasks)

    def follow(self) -> None:
        self.exports.follow()
        self.tasks.follow()

    def start_waiting(self, has_slot: Callable[[], int], gpu: Callable[[], int | None]) -> None:
        """Start what there is room for. Runs come first: only what no run waits for is used."""
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
        with self.isolation.step("start", "tasks"):
            while self._tasks_without_slot < concurrent_exports.MAX_TASKS and self.tasks.take_next(
                on_device=False
            ):
                pass

    @property
    def _exports_beside_training(self) -> int:
        return len(self.exports.monitored) - self.exports.slots

    @property
    def _tasks_without_slot(self) -> int:
        return len(self.tasks.monitored) - self.tasks.slots
