"""`studio worker`: run the queue until a signal arrives or the supervisor exits."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from studio import logs
from studio.commands import login_link
from studio.db.session import unit_of_work
from studio.errors import StudioError
from studio.processes import parent_death
from studio.redaction import redact
from studio.services.accounts import secrets
from studio.services.operations import home
from studio.services.runs import attempts
from studio.services.storage import locks
from studio.settings import Settings
from studio.worker.fault_isolation import catch_errors
from studio.worker.loop import WorkerLoop

LOCK_WAIT_SECONDS = 5.0
"""How long a supervised worker waits for the previous worker to exit."""


def run_worker(lifeline: int | None) -> None:
    """Run the queue; `lifeline` is an open socket connected to a supervisor."""
    stop = threading.Event()
    with _errors_to_supervisor(lifeline):
        settings = Settings()
        login_link.restrict_umask()
        logs.configure("worker")
        if lifeline is not None:
            parent_death.stop_on_parent_exit(lifeline, stop)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        engine = home.open_home(settings)
        secrets.register_for_redaction(engine, settings)
        patience = 0.0 if lifeline is None else LOCK_WAIT_SECONDS
        with locks.single_process(settings.home, "worker", "the queue", patience_seconds=patience):
            with unit_of_work(engine) as db:
                attempts.renew_remote_leases(db)
            WorkerLoop.local(engine, settings).run(stop)


@contextmanager
def _errors_to_supervisor(lifeline: int | None) -> Iterator[None]:
    """Report to the supervisor why the queue cannot continue, so that pages can show it."""
    with catch_errors() as errors:
        yield
    for error in errors:
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, StudioError):
            words = f"{error.message} {error.hint}".strip()
        if lifeline is not None:
            with suppress(OSError):  # the supervisor is gone
                os.write(lifeline, redact(words[:2000]).encode())
        raise error
