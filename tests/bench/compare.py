"""Runs side by side: long curves laid together on every axis, and charts drawn in a browser."""

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi.testclient import TestClient
from playwright.sync_api import sync_playwright
from sqlalchemy import Engine
from sqlmodel import insert

from studio.db.session import open_engine, unit_of_work
from studio.db.tables import Metric
from studio.services.operations import home
from studio.settings import Settings
from studio.web.app import create_app, freeze_gc_heap
from tests.bench.measurement import Measurement
from tests.support.factories import add_starter_data, make_running
from tests.support.live_studio import Studio, free_port, prepare, stop_everything
from tests.tools.browser import find_browser

RUNS = 10
POINTS = 100_000
DRAWN = 2000
"""Points of each run in the browser."""
TIMES = 5
AXES = ("step", "relative_step", "epoch", "tokens", "seconds", "wall", "loss_scale")

DRAW = """async ([runs, points]) => {
  const module = document.querySelector("[data-module]").dataset.module;
  const address = new URL("../charts/line_chart.js", new URL(module, location.href));
  const { Chart } = await import(address);
  const card = document.createElement("section");
  card.innerHTML = '<p class="read"></p><div class="plot"></div>';
  document.querySelector(".charts").prepend(card);
  card.scrollIntoView();
  const series = Array.from({ length: runs }, (_, i) =>
    ({ key: String(i), label: `run ${i}`, hue: i % 8, dash: 0, isNoisy: true }));
  const x = Array.from({ length: points }, (_, i) => i);
  const noise = () => x.map((i) => 2 / (1 + i / 300) + Math.random() / 5);
  const curves = Object.fromEntries(series.map(({ key }) => {
    const mean = noise();
    const [min, max] = [-0.1, 0.1].map((by) => mean.map((v) => v + by));
    return [key, { mean, min, max, non_finite: [] }];
  }));
  const painted = () => new Promise((done) =>
    requestAnimationFrame(() => setTimeout(done)));
  const chart = new Chart(card.querySelector(".plot"), { title: "m", group: "bench", series });
  chart.smoothBy(0.6);
  await new Promise((done) => setTimeout(done, 200));
  const made = performance.now();
  chart.load(x, curves);
  chart.draw();
  await painted();
  const create = performance.now() - made;
  const appends = [];
  for (let i = 0; i < 20; i += 1) {
    const began = performance.now();
    for (const { key } of series) chart.insert(points + i, key, Math.random(), points + i);
    chart.draw();
    await painted();
    appends.push(performance.now() - began);
  }
  chart.dispose();
  card.remove();
  return { create, append: appends.sort((a, b) => a - b)[10] };
}"""


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder:
        yield from _laid(Path(folder))
    with TemporaryDirectory() as folder:
        yield from _drawn(Path(folder))


def _laid(folder: Path) -> Iterator[Measurement]:
    settings = Settings(home=folder, allowed_hosts="testserver")
    engine = home.open_home(settings)
    numbers = _fill(engine, settings, RUNS, POINTS)
    client = TestClient(create_app(engine, settings))
    freeze_gc_heap()
    for axis in AXES:
        url = f"/api/v1/compare/curves?keys=loss&x={axis}&runs={','.join(map(str, numbers))}"
        took = [_seconds(client, url) for _ in range(TIMES)]
        with client.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as answer:
            weight = sum(map(len, answer.iter_raw()))
        what = f"{RUNS} runs of {POINTS:,} points along {axis}"
        yield Measurement(what, statistics.median(took) * 1000, "ms")
        yield Measurement(what + ", gzipped", weight / 1000, "KB")
    engine.dispose()


def _drawn(folder: Path) -> Iterator[Measurement]:
    studio = Studio(folder, free_port(), worker=False)
    prepare(Settings(home=folder))
    engine = open_engine(folder / "studio.db")
    numbers = _fill(engine, None, 2, 100)
    engine.dispose()
    studio.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=str(find_browser()), args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(base_url=studio.url)
            weights: dict[str, int] = {}
            page.on("response", lambda one: _weigh(weights, one))
            page.goto(f"/compare?runs={','.join(map(str, numbers))}")
            page.wait_for_load_state("networkidle")
            found = [page.evaluate(DRAW, [RUNS, DRAWN]) for _ in range(TIMES)]
            browser.close()
    finally:
        stop_everything(studio)
    what = f"{RUNS} runs x {DRAWN:,} points in Chromium: "
    yield Measurement(what + "create", statistics.median(one["create"] for one in found), "ms")
    yield Measurement(
        what + "append to paint", statistics.median(one["append"] for one in found), "ms"
    )
    for kind in ("js", "css"):
        size = sum(weight for url, weight in weights.items() if f".{kind}" in url)
        yield Measurement(f"a comparison's first visit: {kind}, gzipped", size / 1000, "KB")


def _weigh(weights: dict[str, int], answer: Any) -> None:  # noqa: ANN401 -- playwright's own
    if "/static/" in answer.url:
        weights[answer.url] = int(answer.header_value("content-length") or 0)


def _fill(engine: Engine, settings: Settings | None, runs: int, points: int) -> list[int]:
    numbers = []
    with unit_of_work(engine) as db:
        if settings:
            add_starter_data(db, settings)
        numbers = [make_running(db).id or 0 for _ in range(runs)]
    for run in numbers:
        with unit_of_work(engine) as db:
            rows = [
                {
                    "run_id": run,
                    "key": key,
                    "step": i,
                    "epoch": i / 1000,
                    "tokens": i * (500 + run),
                    "seconds": i * 0.3,
                    "value": 1 / (i + run) if key == "loss" else i % 1000,
                }
                for i in range(1, points + 1)
                for key in ("loss", "loss_scale")
            ]
            db.exec(insert(Metric), params=rows)
    return numbers


def _seconds(client: TestClient, url: str) -> float:
    began = time.perf_counter()
    assert client.get(url).is_success
    return time.perf_counter() - began


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
