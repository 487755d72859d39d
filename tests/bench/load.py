"""Under load: points that pour in while people watch, long lists, and long curves laid together."""

import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import insert

from studio.db.session import open_engine, unit_of_work
from studio.db.tables import Metric
from studio.services.operations import home
from studio.settings import Settings
from studio.web.app import create_app, freeze_gc_heap
from tests.bench.measurement import Measurement
from tests.bench.page_weight import fill
from tests.support.factories import make_running
from tests.support.live_studio import Studio, free_port, prepare, stop_everything
from tests.support.stream_viewers import KEYS, add_metrics, watch_streams

VIEWERS = 50
RATE = 1000
"""Points a second."""
SECONDS = 60
"""Long enough for three batches to lie beyond the 99th percentile."""
EVERY_SECONDS = 0.2
BATCH, BATCHES = int(RATE * EVERY_SECONDS / KEYS), int(SECONDS / EVERY_SECONDS)
STEPS = 1 + BATCH * BATCHES

RUNS = 100_000
CURVES = 10
POINTS = 100_000
TIMES = 200


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder:
        yield from _pouring(Path(folder))
    with TemporaryDirectory() as folder:
        yield from _long(Path(folder))


def _pouring(folder: Path) -> Iterator[Measurement]:
    studio = Studio(folder, free_port(), worker=False)
    prepare(Settings(home=folder))
    engine = open_engine(folder / "studio.db")
    with unit_of_work(engine) as db:
        number = make_running(db).id or 0
    engine.dispose()
    studio.start()
    url = f"{studio.url}/api/v1/runs/{number}/stream"
    # The worker stores numbers in a process of its own: fifty viewers' threads are not among it.
    teller = ProcessPoolExecutor(1, get_context("spawn"))
    try:
        with teller, watch_streams(url, VIEWERS, STEPS) as viewers:
            took = teller.submit(_tell_all, folder, number).result()
            seen = [viewer.result() for viewer in viewers]
    finally:
        stop_everything(studio)
    lost = sum(one != list(range(1, STEPS + 1)) for one in seen)
    what = f"{RATE:,} points/s, {VIEWERS} viewers: "
    yield Measurement(what + "viewers that missed any", lost, "")
    yield Measurement(what + "storing a batch, p50", statistics.median(took) * 1000, "ms")
    yield Measurement(what + "p99", _p99(took) * 1000, "ms")


def _tell_all(folder: Path, number: int) -> list[float]:
    """Store batch after batch in time. Return how many seconds each took."""
    engine = open_engine(folder / "studio.db")
    add_metrics(engine, number, 1, 1)  # prepares statements, as a worker has long done
    took = []
    for i in range(BATCHES):
        began = time.monotonic()
        took.append(add_metrics(engine, number, i * BATCH + 2, BATCH))
        time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - began)))
    engine.dispose()
    return took


def _long(folder: Path) -> Iterator[Measurement]:
    settings = Settings(home=folder, allowed_hosts="testserver")
    engine = home.open_home(settings)
    _fill(engine, settings)
    client = TestClient(create_app(engine, settings))
    freeze_gc_heap()
    lists = {
        "list": "/api/v1/runs?limit=50",
        "filtered by status": "/api/v1/runs?limit=50&status=failed",
        "searched by name": "/api/v1/runs?limit=50&search=9999",
        "as a page": "/",
    }
    for name, url in lists.items():
        _seconds(client, url)  # the first one of all prepares statements and templates
        took = [_seconds(client, url) for _ in range(TIMES)]
        what = f"{RUNS:,} runs, 1 M points: {name}"
        yield Measurement(f"{what}, p50", statistics.median(took) * 1000, "ms")
        yield Measurement(f"{what}, p99", _p99(took) * 1000, "ms")
    url = "/api/v1/compare?keys=m&runs=" + ",".join(str(i) for i in range(1, CURVES + 1))
    took = [_seconds(client, url) for _ in range(5)]
    with client.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as answer:
        weight = sum(map(len, answer.iter_raw()))
    what = f"{CURVES} runs of {POINTS:,} points compared"
    yield Measurement(what, statistics.median(took) * 1000, "ms")
    yield Measurement(what + ", answer gzipped", weight / 1000, "KB")
    engine.dispose()


def _fill(engine: Engine, settings: Settings) -> None:
    fill(engine, settings, RUNS)
    for run in range(1, CURVES + 1):
        place = {"run_id": run, "key": "m", "epoch": 0.0, "tokens": 0, "seconds": 0.0}
        points = [place | {"step": i, "value": 1 / (i + run)} for i in range(1, POINTS + 1)]
        with unit_of_work(engine) as db:
            db.exec(insert(Metric), params=points)


def _seconds(client: TestClient, url: str) -> float:
    began = time.perf_counter()
    assert client.get(url).is_success
    return time.perf_counter() - began


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
