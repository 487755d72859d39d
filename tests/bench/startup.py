"""How soon things are there: the web process, the first page, the first step, the first point."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
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
REPEATS = 5


def measure() -> Iterator[Measurement]:
    """Measure each once, but for processor seconds; other work of the machine shows in them."""
    yield from processor_seconds()
    yield _memory()
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


def processor_seconds() -> Iterator[Measurement]:
    """Measure what starts cost in seconds of a processor, which other work changes little."""
    code = "import time, studio.web.app; print(time.process_time())"
    yield _median("import of the web process", lambda: float(_run("-c", code)))
    with TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder) / "home")
        settings.home.mkdir()
        prepare(settings)
        studio = Studio(settings.home, free_port(), worker=False)
        yield _median("studio serve, to the first page", lambda: _serve_once(studio))
        _serve(studio)
        try:
            os.environ["STUDIO_URL"] = studio.url
            for command in (("--help",), ("runs", "list")):
                name = f"studio {' '.join(command)}"
                yield _median(name, partial(_child_seconds, "-m", "studio", *command))
        finally:
            del os.environ["STUDIO_URL"]
            studio.interrupt()
            studio.wait()


def _median(name: str, measure_once: Callable[[], float]) -> Measurement:
    """Measure several times, once the bytecode of what is imported is in its files."""
    measure_once()
    seconds = statistics.median(measure_once() for _ in range(REPEATS))
    return Measurement(f"{name}, median of {REPEATS}", seconds, "s of a processor")


def _run(*arguments: str) -> str:
    """Return what a Python process prints; like an installed one, it keeps bytecode."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = (sys.executable, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True, env=kept).stdout


def _child_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _serve_once(studio: Studio) -> float:
    _serve(studio)
    assert studio.process is not None
    used = psutil.Process(studio.process.pid).cpu_times()
    studio.interrupt()
    studio.wait()
    return used.user + used.system


def _memory() -> Measurement:
    code = "import psutil, studio.web.app; print(psutil.Process().memory_info().rss)"
    megabytes = float(_run("-c", code)) / 1e6
    return Measurement("memory of the web process after import", megabytes, "MB")


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
