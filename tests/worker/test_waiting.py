"""The worker sleeps until there is something to do, and then does it at once."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.commit_signals import FOLDER
from studio.db.session import is_on_server, read_session, unit_of_work
from studio.db.tables import Worker
from studio.services.runs import runs
from studio.settings import Settings
from studio.worker import loop as worker_loop
from studio.worker import waiting
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.waiting import SETTLE_SECONDS, Waiter, open_waiter
from tests.support.waiting import wait_until

LONG = 25.0
"""Less than the time after which the worker looks without news."""
FAKE = str(Path(__file__).parents[1] / "fakes" / "runner.py")

SUBMITTER = """
from studio.db.session import unit_of_work
from studio.services.operations import home
from studio.settings import Settings
from tests.support.factories import make_run
with unit_of_work(home.open_home(Settings())) as db:
    print(make_run(db, "from elsewhere").id)
"""


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    stop = threading.Event()
    yield stop
    stop.set()


@pytest.fixture
def waiter(engine: Engine, stop: threading.Event) -> Iterator[Waiter]:
    with open_waiter(engine, stop) as waiter:
        waiter.wait((), is_busy=False, until=0)  # On a server, listening begins with news.
        yield waiter


def write(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.add(Worker(name="w", pid=1, slots=1))


@contextmanager
def soon(act: Callable[[], object]) -> Iterator[None]:
    """Do something while the block waits."""
    timer = threading.Timer(0.1, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def seconds_of(
    waiter: Waiter,
    *sources: socket.socket | None,
    seconds: float = LONG,
    is_busy: bool = False,
) -> float:
    began = time.monotonic()
    waiter.wait(sources, is_busy=is_busy, until=began + seconds)
    return time.monotonic() - began


def test_commit_before_and_during_the_wait_ends_it(engine: Engine, waiter: Waiter) -> None:
    before = threading.Thread(target=write, args=(engine,))
    before.start()
    before.join()

    assert seconds_of(waiter) < LONG
    with unit_of_work(engine) as db:
        db.delete(db.get_one(Worker, "w"))
    with soon(lambda: write(engine)):
        assert seconds_of(waiter) < LONG


def test_stop_and_clients_end_the_wait(waiter: Waiter, stop: threading.Event) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"1")

        assert seconds_of(waiter, None, ours) < LONG
    with soon(stop.set):
        assert seconds_of(waiter) < LONG


def test_mere_time_is_nothing_to_do(
    engine: Engine, waiter: Waiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_on_server(engine):
        wait_until(lambda: seconds_of(waiter, seconds=1) >= 1)  # It began to listen, which is news.
    seconds_of(waiter, seconds=0)
    found = [waiter.is_due]
    with soon(lambda: write(engine)):
        seconds_of(waiter)
    found.append(waiter.is_due)
    waiter.wait((), is_busy=False, until=time.monotonic() + LONG, due_at=time.monotonic())
    found.append(waiter.is_due)
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.1)
    seconds_of(waiter)

    assert (found, waiter.is_due) == ([False, True, True], True)


def test_ticks_stay_frequent_for_a_while_after_work(waiter: Waiter) -> None:
    began = time.monotonic()
    ticks = 0
    seconds_of(waiter, is_busy=True)
    while time.monotonic() - began < SETTLE_SECONDS:
        seconds_of(waiter, seconds=LONG / 10)
        ticks += 1

    assert ticks > 1


def test_without_sockets_the_waiter_asks(
    engine: Engine, settings: Settings, stop: threading.Event
) -> None:
    if is_on_server(engine):
        pytest.skip("A server announces its commits itself.")
    (settings.home / FOLDER).write_text("not a folder", encoding="utf-8")
    with open_waiter(engine, stop) as waiter, soon(lambda: write(engine)):
        assert seconds_of(waiter) < LONG


def test_sleeping_worker_claims_run_of_another_process(
    engine: Engine, settings: Settings, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("STUDIO_HOME", str(settings.home))
    if is_on_server(engine):
        monkeypatch.setenv("STUDIO_DATABASE", settings.database.get_secret_value())
    monkeypatch.setattr(worker_loop, "HEARTBEAT_SECONDS", LONG)
    launcher = LocalLauncher(command=(sys.executable, FAKE, "succeed"))
    loop = WorkerLoop(engine, settings, launcher)
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    ours = threading.Event()
    ours.wait(1.0)  # It sleeps by now.
    told = subprocess.run(
        [sys.executable, "-c", SUBMITTER], capture_output=True, text=True, check=True
    )

    def has_succeeded() -> bool:
        with read_session(engine) as db:
            return runs.get(db, int(told.stdout)).status == "succeeded"

    wait_until(has_succeeded)
    wait_until(lambda: not loop.monitored)  # Its process has ended.
    stop.set()
    thread.join()
