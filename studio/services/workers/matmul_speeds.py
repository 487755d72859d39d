"""How fast a machine multiplies in each number format: measured once by a chore, and kept."""

import hashlib
from dataclasses import replace

from sqlmodel import Session, col, select

from studio.db.states import WorkStatus
from studio.db.tasks import Chore
from studio.hardware import Hardware
from studio.services.tasks import tasks

KIND = "probe"


def ask(db: Session, hardware: Hardware) -> None:
    """Queue the measurement of a machine that can train, unless it was measured or will be."""
    lasting = col(Chore.status).not_in([WorkStatus.FAILED, WorkStatus.CANCELLED])
    known = select(Chore.id).where(Chore.subject == subject(hardware), lasting)
    if hardware.torch and db.exec(known).first() is None:
        tasks.ask(db, KIND, subject(hardware), {})


def subject(hardware: Hardware) -> str:
    """Name a machine by what its speed depends on."""
    gpus = [(gpu.name, gpu.capability) for gpu in hardware.gpus]
    written = repr((hardware.device, hardware.processor, hardware.cores, gpus, hardware.torch))
    return f"machine:{hashlib.sha256(written.encode()).hexdigest()[:16]}"


def with_measured(db: Session, hardware: Hardware) -> Hardware:
    """Return a machine with what was measured of it."""
    done = select(Chore).where(
        Chore.subject == subject(hardware),
        Chore.kind == KIND,
        Chore.status == WorkStatus.SUCCEEDED,
    )
    chore = db.exec(done).first()
    if chore is None:
        return hardware
    seconds = chore.result["seconds"]
    times = {name: one / seconds["float32"] for name, one in seconds.items()}
    return replace(hardware, product_times=times)
