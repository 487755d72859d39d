"""Matrix multiplication speed by number format, measured once per machine by a task."""

from dataclasses import replace

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.hardware import Hardware
from studio.services.tasks import tasks

KIND = "probe"


def enqueue(db: Session, hardware: Hardware) -> None:
    """Queue the measurement of a machine that can train, unless it is done or queued already."""
    lasting = col(Task.status).not_in([TaskStatus.FAILED, TaskStatus.CANCELLED])
    query = select(Task.id).where(Task.subject == task_subject(hardware), lasting)
    if hardware.torch and db.exec(query).first() is None:
        tasks.enqueue(db, KIND, task_subject(hardware), {})


def task_subject(hardware: Hardware) -> str:
    """Return a subject derived from everything that affects a machine's speed."""
    gpus = [(gpu.name, gpu.capability) for gpu in hardware.gpus]
    written = repr((hardware.device, hardware.processor, hardware.cores, gpus, hardware.torch))
    return tasks.hashed_subject("machine", written)


def with_measured_speeds(db: Session, hardware: Hardware) -> Hardware:
    """Return the hardware with its measured speeds, if there are any."""
    query = select(Task).where(
        Task.subject == task_subject(hardware),
        Task.kind == KIND,
        Task.status == TaskStatus.SUCCEEDED,
    )
    task = db.exec(query).first()
    if task is None:
        return hardware
    seconds = task.result["seconds"]
    ratios = {name: value / seconds["float32"] for name, value in seconds.items()}
    return replace(hardware, product_times=ratios)
