"""The web process with its worker beside it: what `studio serve` starts, and how it all ends."""

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

import typer
import uvicorn

from studio import logs, paths
from studio.commands import entry
from studio.commands.entry import Address
from studio.errors import ConflictError, UnavailableError
from studio.services import checks, home, locks, secrets
from studio.settings import Settings

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.5
"""How long open requests may take at shutdown; streams are told to end at once."""
LEAVE_SECONDS = 60.0
"""How long a worker may take to leave: longer than it waits for a database that is busy."""


def serve(settings: Settings, address: Address, *, open_page: bool, worker: bool) -> None:
    """Serve until told to stop.

    Raises:
        ConflictError: the port or the folder is taken.
        InvalidError: others could reach it, and it would let them in.
        UnavailableError: the folder cannot be used, or files of the page are missing.

    """
    entry.keep_private()
    logs.configure("web")
    entry.check(settings, address)
    _require_scripts()
    listening = listen(address)
    with locks.only_one(settings.home, "web", address.url):
        engine = home.open_home(settings)
        secrets.hide(engine, settings)
        home.tidy(engine, settings)
        home.furnish(engine, settings, typer.echo)
        _warn(settings)
        with _beside(settings if worker else None):
            # The largest import of all goes on while the worker does its own.
            from studio.web import render  # noqa: PLC0415 -- heavy import
            from studio.web.app import create_app, settle  # noqa: PLC0415 -- heavy import

            _announce(entry.prepare(engine, settings, address.url), open_page=open_page)
            render.keep_compiled(settings.cache / "templates")
            app = create_app(engine, settings)
            settle()
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                proxy_headers=False,  # `studio.web.proxies` reads them, and asks from whom
                timeout_graceful_shutdown=int(GRACE_SECONDS) or 1,
            )
            uvicorn.Server(config).run(sockets=[listening])


def _require_scripts() -> None:
    if not paths.has_scripts():
        raise UnavailableError(
            "The page's scripts are missing from static/vendor.",
            hint="Run `make run`, or `python hatch_build.py` in the checkout.",
        )


def _warn(settings: Settings) -> None:
    """Say on the terminal what may hurt the data; nothing of it keeps the studio from starting."""
    for finding in checks.of_home(settings):
        if finding.good is False:
            typer.secho(f"  ! {finding.text}", fg="yellow", err=True)


@contextmanager
def _beside(settings: Settings | None) -> Iterator[None]:
    """Run a worker as long as the web process lives; what it trains goes on after both.

    None leaves the worker out.
    """
    if settings is None:
        yield
        return
    child = subprocess.Popen([sys.executable, "-m", "studio", "worker"])
    try:
        yield
    finally:
        child.terminate()
        _await(child, settings)


def _await(child: subprocess.Popen[bytes], settings: Settings) -> None:
    """Give a worker the time it may take; one that hangs must not keep Ctrl-C from ending all."""
    drains = settings.on_stop == "drain"
    try:
        child.wait(LEAVE_SECONDS + (settings.save_grace_seconds if drains else 0))
    except subprocess.TimeoutExpired:
        log.warning("worker_hung", extra={"pid": child.pid})
        child.kill()
        child.wait()


def listen(address: Address) -> socket.socket:
    """Take the port before anything else, so that a second studio says so at once."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # Said to be TCP, or asyncio does not turn off Nagle's algorithm: 40 ms for each answer of a
    # connection that is kept.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen()  # whoever comes too early waits, and is not turned away
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                f"Port {address.port} is taken by another program.",
                hint=f"Choose another: PORT={address.port + 1} make run, "
                f"or studio serve --port {address.port + 1}",
            ) from error
        raise UnavailableError(
            f"Cannot listen on {address.host}:{address.port}: {error.strerror}."
        ) from error
    return listening


def _announce(url: str, *, open_page: bool) -> None:
    once = "\n  This link lets one browser in; `studio link` prints another." if "?" in url else ""
    typer.secho(f"\n  Mantissa Studio is at {url}{once}\n  Ctrl-C ends it.\n", bold=True)
    has_screen = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if open_page and has_screen:
        threading.Timer(0.5, webbrowser.open, [url]).start()
