"""`studio worker`: run the queue until a signal arrives or the supervisor exits."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from studio import logs, redaction
from studio.commands import login_link
from studio.db.session import unit_of_work
from studio.errors import InvalidError, StudioError
from studio.processes import parent_death
from studio.redaction import redact
from studio.services.accounts import secrets
from studio.services.operations import home
from studio.services.runs import attempts
from studio.services.storage import locks
from studio.settings import LOOPBACK_HOSTS, Settings
from studio.worker.fault_isolation import catch_errors
from studio.worker.loop import WorkerLoop
from studio.worker.remote.remote_loop import RemoteLoop

log = logging.getLogger(__name__)

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


def run_remote_worker(url: str) -> None:
    """Run the queue of a studio on another machine.

    Raises:
        ApiError: the studio refuses the token or the version.
        InvalidError: there is no token, or no such address.

    """
    settings, token = Settings(), os.environ.pop("STUDIO_TOKEN", "")
    check_studio(url, token)
    redaction.register_secrets([token])
    login_link.restrict_umask()
    logs.configure("worker")
    # It would report each of the calls, several a second.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in LOOPBACK_HOSTS:
        log.warning("token_sent_unencrypted", extra={"studio": url})
    with locks.explain_os_errors(settings.home):
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locks.single_process(settings.home, "worker", f"the queue of {url}"):
        RemoteLoop.local(settings, url, token).run(stop)


def check_studio(url: str, token: str) -> None:
    """Check what the command needs before it starts.

    Raises:
        InvalidError: there is no token, or no such address.

    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
        raise InvalidError(
            "This is not the address of a studio.", hint="Use one such as https://studio.example."
        )
    if not token:
        raise InvalidError(
            "A worker for a studio on another machine needs a token.",
            hint="Create one with the scope admin in the studio, and set STUDIO_TOKEN to it.",
        )


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
