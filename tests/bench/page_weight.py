"""What pages weigh, and how soon a long list is there."""

import gzip
import re
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import insert

from studio import resources
from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Experiment, Run
from studio.services.operations import home
from studio.settings import Settings
from studio.web.app import create_app
from studio.web.rendering import static_files
from tests.bench.measurement import Measurement
from tests.support.factories import add_starter_data, make_recipe

RUNS = 10_000
TIMES = 15


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), allowed_hosts="testserver")
        engine = home.open_home(settings)
        fill(engine, settings, RUNS)
        client = TestClient(create_app(engine, settings))
        yield Measurement(f"list page with {RUNS:,} runs", _median(client, "/"), "ms")
        yield Measurement("the same, searched by name", _median(client, "/?q=999"), "ms")
        yield Measurement("the same over REST", _median(client, "/api/v1/runs"), "ms")
        html = client.get("/").text
        engine.dispose()
    yield Measurement("its HTML, gzipped", _gzipped(html.encode()) / 1000, "KB")
    # What one page loads at once has a budget, which `tests/contract/test_page_weight.py` checks.
    for name, kind in (
        ("all scripts of lists and runs, gzipped", "js"),
        ("styles of a first visit, gzipped (budget 20)", "css"),
    ):
        yield Measurement(name, sum(map(_gzipped, contents(html, kind))) / 1000, "KB")


def fill(engine: Engine, settings: Settings, count: int) -> None:
    """Fill a home with runs, each hundredth of them failed."""
    recipe = make_recipe()
    with unit_of_work(engine) as db:
        add_starter_data(db, settings)
        db.add(Experiment(name="many", recipe=recipe))
        db.flush()
        rows = [
            {
                "experiment_id": 1,
                "name": f"run {i}",
                "recipe": recipe,
                "status": RunStatus.FAILED if i % 100 == 0 else RunStatus.SUCCEEDED,
                "resolved": {},
                "metrics": {"eval_loss": 2.0, "tokens_per_second": 1000.0},
            }
            for i in range(count)
        ]
        db.exec(insert(Run), params=rows)


def _median(client: TestClient, url: str) -> float:
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        assert client.get(url).is_success
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def contents(html: str, kind: str) -> list[bytes]:
    """Return what a page loads: the files it names, and what its modules import."""
    names = set(re.findall(rf"/static/([\w/.-]+\.{kind})", html))
    joined = [static_files.bundle_content()] if static_files.BUNDLE_NAME in names else []
    return [
        *joined,
        *(path.read_bytes() for path in _files(names - {static_files.BUNDLE_NAME}, kind)),
    ]


def _files(names: set[str], kind: str) -> set[Path]:
    named = {resources.static_dir() / name for name in names}
    charts = {resources.static_dir() / "js" / "pages" / "run.js"} if kind == "js" else set()
    found = set(named) | charts
    waiting = list(found)
    while waiting:
        path = waiting.pop()
        linked = re.findall(rf'"(\.{{1,2}}/[\w/.-]+\.{kind})"', path.read_text(encoding="utf-8"))
        new = {(path.parent / name).resolve() for name in linked} - found
        found |= new
        waiting += new
    return found


def _gzipped(content: bytes) -> int:
    return len(gzip.compress(content, 9))


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
