"""A database on PostgreSQL: claims a second, and how soon a waiter hears of a commit."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine
from sqlmodel import Session, insert

from studio.db.postgres import CommitListener
from studio.db.session import unit_of_work
from studio.db.tables import Experiment, Run, Worker
from studio.services.operations import home
from studio.services.queue import queue
from studio.settings import Settings
from tests.bench.measurement import Measurement
from tests.support import postgres_server
from tests.support.factories import make_recipe

QUEUED, CLAIMS, CLAIMERS = 10_000, 480, (1, 16)
COMMITS = 200


def measure() -> Iterator[Measurement]:
    if postgres_server.missing_reason():
        return
    with postgres_server.run_server(durable=True) as server, TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), database=server.url(server.create()))
        engine = home.open_home(settings)
        with unit_of_work(engine) as db:
            add_runs(db, QUEUED)
        for claimers in CLAIMERS:
            began = time.perf_counter()
            with ThreadPoolExecutor(claimers) as pool:
                list(pool.map(_claim, [(engine, n, CLAIMS // claimers) for n in range(claimers)]))
            speed = CLAIMS / (time.perf_counter() - began)
            name = f"PostgreSQL, {QUEUED:,} queued, {claimers} claimers"
            yield Measurement(name, speed, "claims/s")
        took = sorted(_wake_ups(engine))
        yield Measurement("PostgreSQL, commit until heard, p50", took[COMMITS // 2] * 1000, "ms")
        yield Measurement("PostgreSQL, commit until heard, p99", took[-COMMITS // 100] * 1000, "ms")
        engine.dispose()


def add_runs(db: Session, count: int) -> None:
    """Queue many runs with three priorities."""
    recipe = make_recipe()
    experiment = Experiment(name="many", recipe=recipe)
    db.add(experiment)
    db.flush()
    row = Run(experiment_id=experiment.id or 0, name="one", recipe=recipe).model_dump()
    row = {name: value for name, value in row.items() if name != "id"} | {"recipe": recipe}
    db.exec(insert(Run), params=[row | {"priority": number % 3} for number in range(count)])


def _claim(given: tuple[Engine, int, int]) -> None:
    engine, number, count = given
    for _ in range(count):
        with unit_of_work(engine) as db:
            run = queue.claim(db, f"{number}-{time.perf_counter()}", 1)
            assert run is not None


def _wake_ups(engine: Engine) -> Iterator[float]:
    with closing(CommitListener(engine)) as changes:
        for number in range(COMMITS):
            time.sleep(0.01)  # What came before has been heard.
            changes.has_new_commit()
            with unit_of_work(engine) as db:
                db.add(Worker(name=f"w{number}", pid=1, slots=1))
                db.flush()
                began = time.perf_counter()
            while not changes.has_new_commit():
                time.sleep(0.0001)
            yield time.perf_counter() - began


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
