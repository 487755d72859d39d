"""`studio serve`: start the web process with its worker, and shut both down."""

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

import typer
import uvicorn
from sqlalchemy import Engine

from studio import logs, resources
from studio.commands import login_link
from studio.commands.login_link import Address
from studio.commands.supervisor import Shutdown, Supervisor
from studio.errors import ConflictError, UnavailableError
from studio.hardware import detect
from studio.services.accounts import secrets
from studio.services.operations import health_checks, home
from studio.services.storage import locks
from studio.services.workers import workers
from studio.settings import Settings

GRACE_SECONDS = 1.5
"""How long open requests may take at shutdown; streams are closed immediately."""


def serve(settings: Settings, address: Address, *, open_page: bool, worker: bool) -> None:
    """Serve until stopped by a signal.

    Raises:
        ConflictError: the port or the home is in use.
        InvalidError: other machines could reach the studio without accounts.
        UnavailableError: the home cannot be used, or the JavaScript of the pages is missing.

    """
    login_link.restrict_umask()
    logs.configure("web")
    login_link.require_safe_address(settings, address)
    _require_vendored_scripts()
    listening = open_listener(address)
    with locks.single_process(settings.home, "web", address.url):
        engine = home.open_home(settings)
        secrets.register_for_redaction(engine, settings)
        home.cleanup(engine, settings)
        home.install_starter(engine, settings)
        _print_warnings(settings)
        with _supervised_worker(engine, settings, enabled=worker) as ending:
            # The slowest import runs while the worker imports its own packages.
            from studio.web.app import create_app, freeze_gc_heap  # noqa: PLC0415 -- heavy import
            from studio.web.rendering import render  # noqa: PLC0415 -- heavy import

            _print_address(
                login_link.prepare_sign_in(engine, settings, address.url), open_page=open_page
            )
            render.cache_compiled_templates(settings.cache / "templates")
            app = create_app(engine, settings)
            freeze_gc_heap()
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                # `studio.web.middleware.request_guard` reads them from trusted proxies only.
                proxy_headers=False,
                timeout_graceful_shutdown=int(GRACE_SECONDS) or 1,
            )
            _Server(config, ending).run(sockets=[listening])


def _require_vendored_scripts() -> None:
    if not resources.has_vendored_scripts():
        raise UnavailableError(
            "The JavaScript of the pages is missing from static/vendor.",
            hint="Run `make run`, or `python hatch_build.py` in the checkout.",
        )


def _print_warnings(settings: Settings) -> None:
    """Print what is missing or puts data at risk; none of it prevents the studio from starting."""
    if not detect().torch:
        typer.echo("The training packages are not installed: pip install 'mantissa-studio[train]'")
    for finding in health_checks.check_home(settings):
        if finding.good is False:
            typer.secho(f"  ! {finding.text}", fg="yellow", err=True)


@contextmanager
def _supervised_worker(engine: Engine, settings: Settings, *, enabled: bool) -> Iterator[Shutdown]:
    """Run a worker while the web process lives; runs continue after both have ended.

    Yields the `Shutdown` to begin when a signal arrives.
    """
    supervisor = Supervisor(engine, settings) if enabled else None
    ending = Shutdown(supervisor, settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ending.exit_early)
    ending.start()
    workers.clear_exit(settings)
    if supervisor is not None:
        supervisor.start()
    try:
        yield ending
    finally:
        ending.begin()
        if supervisor is not None:
            supervisor.stop(ending.seconds)


class _Server(uvicorn.Server):
    """A server that begins the shutdown as soon as a signal arrives."""

    def __init__(self, config: uvicorn.Config, ending: Shutdown) -> None:
        super().__init__(config)
        self._ending = ending
        self._report_signal: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        """Wait for a signal; uvicorn asks for one ten times a second, which costs as much again."""
        loop, signalled = asyncio.get_running_loop(), asyncio.Event()
        self._report_signal = partial(loop.call_soon_threadsafe, signalled.set)
        while not await self.on_tick(0):  # It also sets the header with the date, by the second.
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await signalled.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.begin()
        super().handle_exit(sig, frame)
        self._report_signal()


def open_listener(address: Address) -> socket.socket:
    """Bind the port before anything else, so that a second studio fails immediately.

    Raises:
        ConflictError: the port is in use.
        UnavailableError: the address cannot be bound.

    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # With IPPROTO_TCP, asyncio disables Nagle's algorithm, which would cost 40 ms per response on
    # a kept-alive connection.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen()  # early clients wait instead of being refused
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                f"Port {address.port} is in use by another program.",
                hint=f"Choose another: PORT={address.port + 1} make run, "
                f"or studio serve --port {address.port + 1}",
            ) from error
        raise UnavailableError(
            f"Cannot listen on {address.host}:{address.port}: {error.strerror}."
        ) from error
    return listening


def _print_address(url: str, *, open_page: bool) -> None:
    once = "\n  This link works once; `studio link` prints another." if "?" in url else ""
    typer.secho(f"\n  Mantissa Studio is at {url}{once}\n  Press Ctrl-C to stop.\n", bold=True)
    has_screen = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if open_page and has_screen:
        threading.Timer(0.5, webbrowser.open, [url]).start()
