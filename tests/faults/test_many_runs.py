"""A worker that follows many runs at once, killed in the middle of it again and again."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import func, select

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Metric, Run, RunEvent
from studio.protocols.events import Checkpointed, MetricsLogged, Started
from studio.protocols.run_dir import RunDir
from studio.services.metrics import metric_summaries
from studio.services.operations import home
from studio.services.runs import runs
from studio.settings import Settings
from tests.support.factories import make_run
from tests.support.live_studio import prepare
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

RUNS, KILLS = 40, 8
WRITE_SECONDS = 0.5
MOST_BETWEEN = 4 * RUNS
"""At most so many more values are stored before the next kill."""


@contextmanager
def worker(settings: Settings) -> Iterator[None]:
    """Have a worker follow runs that only pretend to train; it is killed in the end."""
    environment = os.environ | {"STUDIO_HOME": str(settings.home), "STUDIO_DATABASE": ""}
    command = [sys.executable, "-m", "tests.bench.pretend", "worker", str(RUNS)]
    child = subprocess.Popen(command, env=environment)
    try:
        yield
    finally:
        child.kill()
        child.wait()


@contextmanager
def training(folders: list[RunDir]) -> Iterator[list[int]]:
    """Have runs write events; yield how many each has written, which is final afterwards."""
    written, stop = [0], threading.Event()

    def write() -> None:
        logs = [folder.events for folder in folders]
        for log in logs:
            log.append(Started(total_steps=9, resolved={}))
        while not stop.is_set():
            step = written[0] + 1
            for log in logs:
                log.append(
                    MetricsLogged(
                        step=step, epoch=0.1, tokens=step, seconds=1.0, metrics={"loss": 2.0}
                    )
                )
                log.append(Checkpointed(step=step, bytes=1, seconds=0.1))
            written[0] = step
            stop.wait(WRITE_SECONDS)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


def count(engine: Engine, table: type[Metric | RunEvent]) -> int:
    with read_session(engine) as db:
        return db.exec(select(func.count()).select_from(table)).one()


def is_all_read(engine: Engine, folders: list[RunDir]) -> bool:
    with read_session(engine) as db:
        offsets = dict(db.exec(select(Run.id, Run.events_offset)).all())
    return all(
        offsets[int(folder.root.name)] == folder.events.path.stat().st_size for folder in folders
    )


def test_each_event_is_stored_once_when_the_worker_is_killed(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    prepare(settings)
    engine = home.open_home(settings)
    with unit_of_work(engine) as db:
        numbers = [make_run(db, precision="fp32").id or 0 for _ in range(RUNS)]
    folders = [RunDir(settings.runs / str(number)) for number in numbers]
    dice = random.Random(0)  # noqa: S311 -- no secret

    with worker(settings):
        wait_until(lambda: all(folder.job.exists() for folder in folders))
    with training(folders) as written:
        for _ in range(KILLS):
            enough = count(engine, Metric) + dice.randint(1, MOST_BETWEEN)
            with worker(settings):
                wait_until(lambda: count(engine, Metric) >= enough)  # noqa: B023 -- called at once
    with worker(settings):
        wait_until(lambda: is_all_read(engine, folders))

    steps = written[0]
    assert steps > KILLS
    with read_session(engine) as db:
        summaries = metric_summaries.load_by_run(db, numbers)
        kinds = [[event.kind for event in runs.list_events(db, n, limit=10**6)] for n in numbers]
    assert count(engine, Metric) == RUNS * steps
    assert {one["loss"].count for one in summaries.values()} == {steps}
    assert {each.count("checkpointed") for each in kinds} == {steps}
    assert {each.count("running") for each in kinds} == {1}
    engine.dispose()
