"""The banner on every page while the worker is down or partly failing."""

from dataclasses import dataclass

from fastapi import Request

from studio.db.session import read_session
from studio.errors import StudioError
from studio.services.workers import worker_process, workers
from studio.services.workers.worker_process import WorkerExit


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    exit: WorkerExit | None
    """How the worker exited, if none is running."""
    problems: list[str]
    """What the worker cannot do at present, in sentences."""

    @property
    def is_healthy(self) -> bool:
        return self.exit is None and not self.problems


def worker_status(request: Request) -> WorkerStatus:
    """Return the status of the worker; a busy database must not prevent a page from rendering."""
    try:
        with read_session(request.app.state.engine) as db:
            return WorkerStatus(worker_process.last_exit(db), workers.list_failures(db))
    except StudioError:
        return WorkerStatus(None, [])
