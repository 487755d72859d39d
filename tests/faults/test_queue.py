"""The queue under many hands, each of which may be killed at any moment."""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
from sqlmodel import col, func, select

from studio.db.session import read_session, unit_of_work
from studio.db.states import LIVE, RunStatus
from studio.db.tables import Attempt, Run
from studio.services.operations import home
from studio.services.queue import queue
from studio.settings import Settings
from tests.support.factories import add_starter_data, make_run
from tests.support.live_studio import QUICK, Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

CONTENDER = Path(__file__).with_name("competing_worker.py")
CONTENDERS = 8
RUNS = 400
KILLING_SECONDS = 15
PACE_SECONDS = 0.25
"""From one kill to the next: each contender lives for seconds, which is long enough to claim."""
SUBMITTERS = 200
SUBMITTING_SECONDS = 180
KILLS = 3
LONG = 100_000


@contextmanager
def contenders(folder: Path, log: Path) -> Iterator[Callable[[int], None]]:
    """Keep some workers alive; yield what kills one of them and puts another in its place."""
    names = iter(range(10_000))
    told = log.open("ab")

    def begin() -> subprocess.Popen[bytes]:
        name = f"w{next(names)}"
        return subprocess.Popen([sys.executable, str(CONTENDER), str(folder), name], stdout=told)

    alive = [begin() for _ in range(CONTENDERS)]

    def replace(which: int) -> None:
        alive[which].kill()
        alive[which].wait()
        alive[which] = begin()

    try:
        yield replace
    finally:
        for process in alive:
            process.kill()
            process.wait()
        told.close()


def test_every_run_is_executed_once_when_workers_are_killed(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    engine = home.open_home(settings)
    with unit_of_work(engine) as db:
        add_starter_data(db, settings)
        for number in range(RUNS):
            make_run(db, f"run {number}")
    dice, log = random.Random(0), tmp_path / "log"  # noqa: S311 -- no secret

    def left() -> int:
        with read_session(engine) as db:
            done = select(func.count()).where(Run.status == RunStatus.SUCCEEDED)
            return RUNS - db.exec(done).one()

    kills, pause = 0, threading.Event()
    with contenders(settings.home, log) as replace:
        end = time.monotonic() + KILLING_SECONDS
        while time.monotonic() < end and left():
            replace(dice.randrange(CONTENDERS))
            kills += 1
            pause.wait(PACE_SECONDS)
        wait_until(lambda: not left())

    with read_session(engine) as db:
        outcomes = Counter(db.exec(select(Attempt.outcome)).all())
        live = db.exec(select(func.count()).where(col(Run.status).in_(LIVE))).one()
        held = sum(queue.count_used_slots(db, name) for name in db.exec(select(Run.worker)).all())
    said = log.read_text(encoding="ascii").split()
    assert kills > CONTENDERS
    # A word may be lost with its process, but none is said twice.
    assert len(said) == len(set(said))
    assert (outcomes["succeeded"], live, held) == (RUNS, 0, 0)
    assert set(outcomes) <= {"succeeded", "lost"}


def test_acknowledged_submissions_are_stored_once(make_studio: Callable[[], Studio]) -> None:
    """Two hundred programs submit at once while the server is killed three times."""
    studio = make_studio()
    studio.kill()
    studio.wait()
    studio.worker = False
    studio.start()

    def stored() -> int:
        waiting: list[object] = studio.api.get("/queue").json()["waiting"]
        return len(waiting)

    def reached(number: int) -> bool:
        return stored() >= number

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        answers = [pool.submit(taken, studio, number) for number in range(SUBMITTERS)]
        for share in range(1, KILLS + 1):
            wait_until(partial(reached, share * 30))
            studio.kill()
            studio.wait()
            studio.start()
        ids = [answer.result() for answer in answers]

    assert sorted(ids) == sorted(set(ids))
    assert stored() == SUBMITTERS


def taken(studio: Studio, number: int) -> int:
    """Submit until it is acknowledged, as programs do. Return the run's number."""
    body = {"name": f"run {number}", "recipe": QUICK}
    headers = {"Idempotency-Key": f"key {number}"}
    end = time.monotonic() + SUBMITTING_SECONDS
    while time.monotonic() < end:
        try:
            answer = studio.api.post("/runs", json=body, headers=headers)
        except httpx2.TransportError:
            time.sleep(0.1)  # the server is away: a program tries again, too
            continue
        if answer.status_code == httpx2.codes.CREATED:
            made: int = answer.json()["id"]
            return made
    # Nobody waits for a thread that goes on for ever.
    raise TimeoutError(f"Run {number} was never taken.")


@pytest.mark.timeout(900)
def test_export_completes_while_long_run_trains(studio: Studio) -> None:
    first = submit_run(studio, "short", max_steps=2)
    wait_until(lambda: get_run(studio, first)["status"] == "succeeded")
    second = submit_run(studio, "long", max_steps=LONG)
    wait_until(lambda: get_run(studio, second)["step"] >= 3)
    asked = studio.api.post(f"/runs/{first}/exports", json={"dtype": "float32"})
    where = f"/runs/{first}/exports/{asked.raise_for_status().json()['id']}"
    wait_until(lambda: studio.api.get(where).json()["status"] == "succeeded", seconds=600)

    assert get_run(studio, second)["status"] == "running"
