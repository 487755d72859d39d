"""How soon things are there: the web process, the first page, the first step, the first point."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import psutil
from playwright.sync_api import sync_playwright

from studio.settings import Settings
from tests.bench.measurement import Measurement
from tests.support.live_studio import (
    UNVERIFIED_TLS,
    Studio,
    free_port,
    get_run,
    prepare,
    submit_run,
)
from tests.support.waiting import wait_until
from tests.tools.browser import find_browser

LONG = 100_000


def measure() -> Iterator[Measurement]:
    """Measure each once; the machine's other work shows in all of them alike."""
    yield from _imports()
    with TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder) / "home")
        settings.home.mkdir()
        prepare(settings)
        studio = Studio(settings.home, free_port())
        yield Measurement("studio serve, to the first page", _seconds(lambda: _serve(studio)), "s")
        try:
            yield from _first_step(studio)
            yield from _first_point(studio)
        finally:
            studio.interrupt()
            yield Measurement("Ctrl-C to the end of web and worker", _seconds(studio.wait), "s")
            _end_training(settings)


def _imports() -> Iterator[Measurement]:
    code = (
        "import time, psutil; began = time.perf_counter(); import studio.web.app;"
        "print(time.perf_counter() - began, psutil.Process().memory_info().rss)"
    )
    done = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    seconds, memory = min(tuple(map(float, one.stdout.split())) for one in done)
    yield Measurement("import of the web process, best of 3", seconds, "s")
    yield Measurement("its memory after import", memory / 1e6, "MB")


def _serve(studio: Studio) -> None:
    studio.begin()
    wait_until(lambda: _answers(studio))


def _answers(studio: Studio) -> bool:
    try:
        return httpx2.get(studio.url, trust_env=False, verify=UNVERIFIED_TLS).is_success
    except httpx2.TransportError:
        return False


def _first_step(studio: Studio) -> Iterator[Measurement]:
    wait_until(studio.is_up)
    number = submit_run(studio, max_steps=3)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    phases = get_run(studio, number)["phases"]
    parts = ("queued_seconds", "launch_seconds", "first_step_seconds")
    yield Measurement("submit to first step", sum(phases[part] for part in parts), "s")


def _first_point(studio: Studio) -> Iterator[Measurement]:
    """Measure from the moment a step is written down to its appearance on an open page."""
    number = submit_run(studio, max_steps=LONG)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_browser()), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto(f"{studio.url}/runs/{number}")
        events = studio.home / "runs" / str(number) / "events.jsonl"
        wait_until(lambda: events.exists() and '"progressed"' in events.read_text())
        written = events.stat().st_mtime
        page.wait_for_selector(".plot canvas", timeout=60_000)
        shown = time.time()
        browser.close()
    studio.api.post(f"/runs/{number}/cancel")
    yield Measurement("step done to its point on the page", shown - written, "s")


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _end_training(settings: Settings) -> None:
    for process in psutil.process_iter(["cmdline"]):
        if str(settings.runs) in " ".join(process.info["cmdline"] or ()):
            process.kill()


if __name__ == "__main__":
    os.environ.pop("STUDIO_HOME", None)
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
