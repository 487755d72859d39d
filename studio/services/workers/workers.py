"""Connected workers: their slots, heartbeats and hardware, with its measured speeds.

Files that pages, commands and `/health` read describe how the worker next to the web process ended,
and the state of the prefork server.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from sqlmodel import Session, col, delete, select

from studio import files
from studio.db.column_types import HOME_DIRS
from studio.db.session import current_time
from studio.db.states import TaskStatus
from studio.db.tables import FailingStep, Worker
from studio.db.tasks import LoadedModel, Task
from studio.hardware import Hardware, detect
from studio.processes.start_time import process_start_time
from studio.protocols.remote_worker import is_remote
from studio.services.tasks import exit_diagnosis, tasks
from studio.settings import Settings

SPEED_TASK_KIND = "probe"


def enqueue_speed_measurement(db: Session, hardware: Hardware) -> None:
    """Queue the measurement of a machine that can train, unless it is done or queued already."""
    lasting = col(Task.status).not_in([TaskStatus.FAILED, TaskStatus.CANCELLED])
    query = select(Task.id).where(Task.subject == speed_task_subject(hardware), lasting)
    if hardware.torch and db.exec(query).first() is None:
        tasks.enqueue(db, SPEED_TASK_KIND, speed_task_subject(hardware), {})


def speed_task_subject(hardware: Hardware) -> str:
    """Return a subject derived from everything that affects a machine's speed."""
    gpus = [(gpu.name, gpu.capability) for gpu in hardware.gpus]
    written = repr((hardware.device, hardware.processor, hardware.cores, gpus, hardware.torch))
    return tasks.hashed_subject("machine", written)


def with_measured_speeds(db: Session, hardware: Hardware) -> Hardware:
    """Return the hardware with its measured speeds, if there are any."""
    query = select(Task).where(
        Task.subject == speed_task_subject(hardware),
        Task.kind == SPEED_TASK_KIND,
        Task.status == TaskStatus.SUCCEEDED,
    )
    task = db.exec(query).first()
    if task is None:
        return hardware
    seconds = task.result["seconds"]
    ratios = {name: value / seconds["float32"] for name, value in seconds.items()}
    return replace(hardware, product_times=ratios)


HARDWARE_ADAPTER = TypeAdapter(Hardware)

HEARTBEAT_TIMEOUT = timedelta(seconds=15)
"""A worker that misses three heartbeats counts as gone."""


def heartbeat(db: Session, worker: Worker) -> None:
    """Record a worker's heartbeat, and delete workers without one for a long time."""
    db.exec(delete(Worker).where(col(Worker.beat_at) < current_time(db) - 4 * HEARTBEAT_TIMEOUT))
    db.merge(worker)


def deregister(db: Session, name: str) -> None:
    """Remove a worker that has ended properly, with the models it had loaded."""
    db.exec(delete(LoadedModel).where(col(LoadedModel.worker) == name))
    db.exec(delete(Worker).where(col(Worker.name) == name))


def deregister_process(db: Session, pid: int) -> None:
    """Remove the worker in a process of this machine at once, without waiting for the timeout."""
    for name in db.exec(select(Worker.name).where(Worker.pid == pid)).all():
        deregister(db, name)


def list_alive(db: Session) -> Sequence[Worker]:
    """Return the workers with a recent heartbeat."""
    query = select(Worker).where(col(Worker.beat_at) > current_time(db) - HEARTBEAT_TIMEOUT)
    return db.exec(query.order_by(col(Worker.name))).all()


def connected_hardware(db: Session) -> Hardware | None:
    """Return the hardware of the best machine with a worker; None without a worker.

    Machines with GPUs come first, then the studio's own; of these, that of the newest heartbeat.
    """
    known = [
        (hardware.device == "cuda", not is_remote(worker.name), worker.beat_at, hardware)
        for worker in list_alive(db)
        if (hardware := _parse_hardware(worker))
    ]
    return max(known, key=lambda one: one[:3])[3] if known else None


def _parse_hardware(worker: Worker) -> Hardware | None:
    try:
        return HARDWARE_ADAPTER.validate_python(worker.hardware) if worker.hardware else None
    except ValidationError:
        return None  # A worker of another version describes its hardware in different fields.


def training_hardware(db: Session) -> Hardware:
    """Return the hardware that runs train on, or this machine's while no worker is connected.

    It includes the measured speeds, once they are known, and of the GPUs only those of the best
    kind, by which recipes are judged.
    """
    return whole_hardware(db).kinds[0]


def whole_hardware(db: Session) -> Hardware:
    """Return the same with the GPUs of all kinds."""
    return with_measured_speeds(db, connected_hardware(db) or detect())


def count_slots(db: Session) -> int:
    """Return how many slots the live workers have."""
    return sum(worker.slots for worker in list_alive(db))


STEP_FAILURES = {
    "adopt": "The worker cannot take over the work of an earlier worker",
    "desk": "The worker cannot start the tokenizer service",
    "end": "The worker cannot stop a process it cannot monitor",
    "fail": "The worker cannot record why a run did not start",
    "follow": "The worker cannot monitor running processes",
    "heartbeat": "The worker cannot send its heartbeat",
    "kill": "The worker cannot kill the process of a run",
    "launcher": "The worker cannot reach what starts its runs",
    "leave": "The worker cannot shut down cleanly",
    "messages": "The worker cannot send notifications",
    "rest": "The worker cannot watch the database",
    "speaker": "The worker cannot start the inference service",
    "start": "The worker cannot start queued work",
    "sweeps": "The worker cannot continue a sweep",
    "tidy": "The worker cannot clean up finished tasks",
    "trackers": "The worker cannot send runs to trackers",
    "trash": "The worker cannot empty the trash",
    "waits": "The worker cannot record what runs wait for",
}
"""The steps of the worker's loop, by name, and what is wrong while one fails."""


def describe_failure(failing: FailingStep) -> str:
    """Describe what a worker cannot do at present."""
    context = f"{failing.subject}: {failing.error}" if failing.subject else failing.error
    return f"{STEP_FAILURES[failing.step]} ({context})"


def list_failures(db: Session) -> list[str]:
    """Describe what the workers cannot do at present; everything else continues."""
    return [describe_failure(step) for worker in list_alive(db) for step in worker.failing]


LauncherState = Literal["off", "loading", "ready", "idle", "broken"]


class LauncherStatus(BaseModel):
    """Whether the prefork server is ready, and the memory it uses."""

    model_config = ConfigDict(frozen=True)

    state: LauncherState = "off"
    pid: int = 0
    started: float = 0
    """Its start time in seconds since the epoch, because pids are reused."""
    why: str = ""
    """Why it is broken, in one sentence."""

    @property
    def summary(self) -> str:
        """Return its state as a short text."""
        match self.state:
            case "ready":
                return f"ready, uses {self.memory_bytes / 10**6:.0f} MB"
            case "loading":
                return "loading the training packages"
            case "idle":
                return "not loaded, comes back with the next run or its form"
            case "broken":
                return f"not available. {self.why}"
            case "off":
                return "off"

    @property
    def memory_bytes(self) -> int:
        """The memory that ending it would free: its own and its share of shared pages."""
        with suppress(psutil.Error):
            memory = psutil.Process(self.pid).memory_full_info()
            return int(getattr(memory, "pss", memory.uss))
        return 0


def write_launcher(settings: Settings, launcher: LauncherStatus) -> None:
    files.replace_text(_launcher_path(settings), launcher.model_dump_json())


def read_launcher(settings: Settings) -> LauncherStatus:
    """Return the last written state, or "off" if that process is gone."""
    try:
        status = LauncherStatus.model_validate_json(
            _launcher_path(settings).read_text(encoding="utf-8")
        )
    except (FileNotFoundError, ValidationError):
        return LauncherStatus()
    return status if not status.pid or _is_launcher_alive(status) else LauncherStatus()


def _is_launcher_alive(status: LauncherStatus) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process_start_time(status.pid) == status.started
    return False


def _launcher_path(settings: Settings) -> Path:
    return settings.home / "launcher.json"


FILE_NAME = "worker.json"


class WorkerExit(BaseModel):
    """How the last worker ended unexpectedly, and when the next one starts."""

    model_config = ConfigDict(frozen=True)

    reason: str
    """A sentence without confidential details."""
    words: str = ""
    """What the worker itself reported, which may contain paths; empty if it was killed."""
    deaths: int = 1
    """How many workers in a row ended soon after their start, including this one."""
    next_at: datetime

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next start; 0 while that worker is starting."""
        return max(0.0, (self.next_at - datetime.now(UTC)).total_seconds())


def write_exit(settings: Settings, worker_exit: WorkerExit) -> None:
    with suppress(OSError):  # On a full disk, pages only report that no worker is running.
        files.replace_text(settings.home / FILE_NAME, worker_exit.model_dump_json())


def clear_exit(settings: Settings) -> None:
    (settings.home / FILE_NAME).unlink(missing_ok=True)


def last_exit(db: Session) -> WorkerExit | None:
    """Return how the worker ended, until another one reports in."""
    return None if list_alive(db) else _read_exit(HOME_DIRS[db.get_bind().dialect] / FILE_NAME)


def _read_exit(path: Path) -> WorkerExit | None:
    try:
        return WorkerExit.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def describe_exit(exit_code: int) -> str:
    """Describe how a worker ended."""
    name = exit_diagnosis.signal_name(exit_code)
    if name == "SIGKILL":
        return "The worker was killed (SIGKILL), by a person or because memory ran out."
    if name:
        return f"The worker was ended by a signal ({name})."
    return f"The worker exited with code {exit_code}."


def describe_start_failure(error: OSError) -> str:
    return f"The worker could not be started: {error.strerror}."
