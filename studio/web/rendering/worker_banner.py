"""The banner on every page while the worker is away, or cannot do part of its work."""

from dataclasses import dataclass

from fastapi import Request

from studio.db.session import read_session
from studio.errors import StudioError
from studio.services.workers import worker_process, workers
from studio.services.workers.worker_process import WorkerExit


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    death: WorkerExit | None
    """How the worker ended, while none is there."""
    failing: list[str]
    """What it cannot do at present, in sentences."""

    @property
    def is_well(self) -> bool:
        return self.death is None and not self.failing


def worker_status(request: Request) -> WorkerStatus:
    """Ask how the worker is; a database that is busy keeps no page from being shown."""
    try:
        with read_session(request.app.state.engine) as db:
            return WorkerStatus(worker_process.last_exit(db), workers.list_failures(db))
    except StudioError:
        return WorkerStatus(None, [])
