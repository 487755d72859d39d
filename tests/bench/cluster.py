"""A large installation on one machine: live runs that only pretend to train, and many people.

Claims, how far the database is behind the runs, the pages that people ask for, memory, and what a
minute adds to the database; on PostgreSQL. `python -m tests.bench.cluster RUNS [REQUESTS]` takes
other numbers: the live runs, and the requests of people each second.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import psutil
from sqlalchemy import Engine, text
from sqlmodel import Session, col, func, insert, select

from studio.db.session import read_session, unit_of_work
from studio.db.states import LIVE
from studio.db.tables import Metric, Run
from studio.services.operations import home
from studio.settings import Settings
from tests.bench.measurement import Measurement
from tests.bench.pretend import STOP
from tests.support import postgres_server
from tests.support.factories import make_run
from tests.support.live_studio import (
    UNVERIFIED_TLS,
    Studio,
    free_port,
    get_run,
    prepare,
    submit_run,
)
from tests.support.waiting import wait_until

RUNS, REQUESTS = 500, 20
SECONDS = 60.0
"""How long all runs are watched once they are live."""

CLAIM_SECONDS = 300.0
"""The longest wait for all of them to be live."""

TABLES = ("metric", "metric_summary", "run", "happening", "run_hardware_sample")
"""Those that grow while runs train."""

PAGES = ("/", "/runs", "/queue", "/runs/{run}", "/api/v1/queue", "/api/v1/runs/{run}")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the bench."""

    child: subprocess.Popen[str]

    @classmethod
    def start(cls, settings: Settings, *arguments: str) -> "Process":
        environment = os.environ | {
            "STUDIO_HOME": str(settings.home),
            "STUDIO_DATABASE": settings.database.get_secret_value(),
        }
        command = [sys.executable, "-m", *arguments]
        child = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE if "feeder" in arguments else subprocess.DEVNULL,
            text=True,
        )
        return cls(child)

    @property
    def seconds(self) -> float:
        """Processor seconds so far."""
        times = psutil.Process(self.child.pid).cpu_times()
        return times.user + times.system

    @property
    def megabytes(self) -> float:
        return psutil.Process(self.child.pid).memory_full_info().pss / 1e6


def measure(runs: int = RUNS, requests: int = REQUESTS) -> Iterator[Measurement]:
    if postgres_server.missing_reason():
        return
    with TemporaryDirectory() as folder, postgres_server.run_server(durable=True) as server:
        recorded = _record(Path(folder) / "recorded")
        database = server.url(server.create())
        settings = Settings(home=Path(folder) / "home", database=database)
        settings.home.mkdir()
        prepare(settings)
        engine = home.open_home(settings)
        with unit_of_work(engine) as db:
            _queue(db, runs)
        feeder = Process.start(settings, "tests.bench.pretend", "feeder", str(recorded))
        worker = Process.start(settings, "tests.bench.pretend", "worker", str(runs))
        port = str(free_port())
        serve = ("studio", "serve", "--no-worker", "--no-sign-in", "--port", port)
        web = Process.start(settings, *serve)
        try:
            yield from _watch(
                engine, (feeder, worker, web), f"http://127.0.0.1:{port}", runs, requests
            )
        finally:
            (settings.home / STOP).touch()
            told = json.loads(feeder.child.communicate()[0] or "{}")
            for process in (worker, web):
                process.child.terminate()
                process.child.wait()
            engine.dispose()
        yield from _percentiles(f"{runs:,} runs, event until stored", told["lags"], 1, "s")


def _queue(db: Session, runs: int) -> None:
    first = make_run(db, "pretend", precision="fp32")
    values = {name: value for name, value in first.model_dump().items() if name != "id"}
    db.exec(insert(Run), params=[values | {"recipe": first.recipe}] * (runs - 1))


def _record(folder: Path) -> Path:
    """Train one real run, and return its events."""
    prepare(Settings(home=folder))
    studio = Studio(folder, free_port())
    studio.start()
    try:
        number = submit_run(studio)
        wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    finally:
        studio.interrupt()
        studio.wait()
    events = folder / "runs" / str(number) / "events.jsonl"
    lines = events.read_text("utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] in {"started", "progressed"}]
    recorded = folder / "recorded.jsonl"
    recorded.write_text("\n".join(kept), "utf-8")
    return recorded


def _watch(
    engine: Engine,
    processes: tuple[Process, Process, Process],
    url: str,
    runs: int,
    requests: int,
) -> Iterator[Measurement]:
    _feeder, worker, web = processes
    _wait_for_claims(engine, 1)
    began = time.monotonic()
    live = _wait_for_claims(engine, runs)
    started = (live - 1) / max(time.monotonic() - began, 0.1)
    yield Measurement(f"{live:,} of {runs:,} runs, started", started, "/s")
    wait_until(lambda: _is_up(url))
    before, spent, points = _database_bytes(engine), (worker.seconds, web.seconds), _points(engine)
    tables = _tables(engine)
    began = time.monotonic()
    took, failed = asyncio.run(_people(url, requests, live))
    seconds = time.monotonic() - began
    yield from _percentiles(f"{requests} requests/s of people", took, 1000, "ms")
    yield Measurement("requests that failed or took over 30 s", failed, "")
    for name, process, start in (("worker", worker, spent[0]), ("web", web, spent[1])):
        yield Measurement(f"{name}, processor", 100 * (process.seconds - start) / seconds, "%")
        yield Measurement(f"{name}, memory", process.megabytes, "MB")
    grown = (_database_bytes(engine) - before) / seconds * 60 / 1e6
    yield Measurement("database, growth a minute", grown, "MB")
    stored = (_points(engine) - points) / seconds
    yield Measurement(f"points stored, of {runs:,} runs", stored, "/s")
    for name, (rows, size) in _tables(engine).items():
        earlier_rows, earlier_size = tables[name]
        a_run = live * seconds / 60
        yield Measurement(f"{name}, rows of a run a minute", (rows - earlier_rows) / a_run, "")
        grown = (size - earlier_size) / a_run / 1000
        yield Measurement(f"{name}, growth of a run a minute", grown, "kB")


def _wait_for_claims(engine: Engine, runs: int) -> int:
    until, live = time.monotonic() + CLAIM_SECONDS, 0
    while live < runs and time.monotonic() < until:
        time.sleep(0.5)
        with read_session(engine) as db:
            query = select(func.count()).where(col(Run.status).in_(LIVE), Run.handle != "")
            live = db.exec(query).one()
    return live


def _points(engine: Engine) -> int:
    with read_session(engine) as db:
        return db.exec(select(func.max(Metric.id))).one() or 0


def _database_bytes(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(
            connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        )


def _tables(engine: Engine) -> dict[str, tuple[int, int]]:
    """Return the rows of each table, and its bytes with those of its indexes."""
    found: dict[str, tuple[int, int]] = {}
    with engine.connect() as connection:
        for name in TABLES:
            rows = func.count().label("rows")
            query = select(rows, func.pg_total_relation_size(name)).select_from(text(name))
            count, size = connection.execute(query).one()
            found[name] = (count, size)
    return found


def _is_up(url: str) -> bool:
    try:
        httpx2.get(f"{url}/api/v1/health", timeout=5, verify=UNVERIFIED_TLS)
    except httpx2.TransportError:
        return False
    return True


async def _people(url: str, requests: int, runs: int) -> tuple[list[float], int]:
    """Ask for pages at a steady pace, whatever the answers take."""
    took: list[float] = []
    failed = 0
    picks = random.Random(0)  # noqa: S311 -- which page a person opens is no secret

    async def ask(client: httpx2.AsyncClient, path: str) -> None:
        nonlocal failed
        began = time.monotonic()
        try:
            answer = await client.get(path)
            failed += answer.status_code != httpx2.codes.OK
        except httpx2.HTTPError:
            failed += 1
        took.append(time.monotonic() - began)

    limits = httpx2.Limits(max_connections=1000)
    async with (
        httpx2.AsyncClient(
            base_url=url, timeout=30, limits=limits, verify=UNVERIFIED_TLS
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(int(SECONDS * requests)):
            path = picks.choice(PAGES).format(run=picks.randint(1, runs))
            group.create_task(ask(client, path))
            await asyncio.sleep(1 / requests)
    return took, failed


def _percentiles(name: str, values: list[float], factor: float, unit: str) -> Iterator[Measurement]:
    ordered = sorted(values) or [float("nan")]
    for share in (0.5, 0.99):
        value = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        yield Measurement(f"{name}, p{100 * share:.0f}", factor * value, unit)


if __name__ == "__main__":
    for figure in measure(*map(int, sys.argv[1:])):
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
