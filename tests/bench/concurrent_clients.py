"""A crowd at the door: 200 programs that read, 50 that follow a run, and a training beside them.

All share the machine's cores, the crowd's own process too. Training is paced alone and among the
crowd, turn and turn about: on every core, as it is by default, and with one left to all others. A
program asks for something every ten seconds, as one that waits for a run does. What the web process
holds is looked at before and after a count of requests.
"""

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import psutil

from studio.protocols.run_dir import RunDir
from studio.settings import Settings
from tests.bench.measurement import Measurement
from tests.bench.run_start import RECIPE
from tests.support.live_studio import Studio, free_port, prepare, stop_everything
from tests.support.waiting import wait_until

CLIENTS, STREAMS = 200, 50
EVERY_SECONDS = 10.0
TURN_SECONDS = 40.0
TURNS = 3
WARM_UP, REQUESTS, AT_ONCE = 2_000, 20_000, 8


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a crowd went through."""

    took: list[float]
    """Seconds of each answer."""
    failed: int
    heard: int
    """Events of the streams."""


def measure() -> Iterator[Measurement]:
    with _studio() as studio:
        yield from _beside(studio, "every core")
        yield from _memory(studio)
    # What a shared machine is told to do, see the README.
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) - 1))
    with _studio() as studio:
        yield from _beside(studio, "all cores but one")


@contextmanager
def _studio() -> Iterator[Studio]:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        prepare(Settings(home=home))
        studio = Studio(home, free_port())
        studio.start()
        try:
            yield studio
        finally:
            stop_everything(studio)


def _beside(studio: Studio, cores: str) -> Iterator[Measurement]:
    """Train alone and among the crowd."""
    lasting = RECIPE | {"optimisation": RECIPE["optimisation"] | {"max_steps": 1_000_000}}
    answer = studio.api.post("/runs", json={"name": "crowd", "recipe": lasting}).raise_for_status()
    number = answer.json()["id"]
    told = RunDir(studio.home / "runs" / str(number)).events.path
    wait_until(lambda: told.exists() and told.read_bytes().count(b'"progressed"') > 1, seconds=300)
    crowds, paces, slower = [], [], []
    with ProcessPoolExecutor(1, get_context("spawn")) as elsewhere:
        for _ in range(TURNS):
            alone = _pace(told)
            crowd = elsewhere.submit(_gather, studio.url, number)
            among = _pace(told)
            crowds.append(crowd.result())
            paces.append(alone)
            slower.append(among / alone)
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()
    took = [one for crowd in crowds for one in crowd.took]
    what = f"{CLIENTS} clients, {STREAMS} streams, a training on {cores}: "
    yield Measurement(what + "answers", len(took), "")
    yield Measurement(what + "failed", sum(crowd.failed for crowd in crowds), "")
    yield Measurement(what + "events heard", sum(crowd.heard for crowd in crowds), "")
    yield Measurement(what + "p50", statistics.median(took) * 1000, "ms")
    yield Measurement(what + "p99", statistics.quantiles(took, n=100)[98] * 1000, "ms")
    yield Measurement(what + "a step alone", statistics.median(paces) * 1000, "ms")
    yield Measurement(what + "a step among them, over alone", statistics.median(slower), "x")


def _pace(told: Path) -> float:
    """Return the seconds of a step, over some of them."""
    began, first = time.monotonic(), _steps(told)
    time.sleep(TURN_SECONDS)
    return (time.monotonic() - began) / max(1, _steps(told) - first)


def _steps(told: Path) -> int:
    """Return the last step that was told of."""
    lines = told.read_text(encoding="utf-8").splitlines()
    last = next(line for line in reversed(lines) if '"progressed"' in line)
    return int(last.split('"step":', 1)[1].split(",", 1)[0])


def _gather(url: str, number: int) -> Crowd:
    return asyncio.run(_crowd(url, number))


async def _crowd(url: str, number: int) -> Crowd:
    crowd, end = Crowd([], 0, 0), time.monotonic() + TURN_SECONDS
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(
        base_url=f"{url}/api/v1", timeout=60, trust_env=False, limits=limits
    ) as client:
        heard = [asyncio.create_task(_follow(client, number, end)) for _ in range(STREAMS)]
        asked = [asyncio.create_task(_ask(client, number, end, crowd.took)) for _ in range(CLIENTS)]
        failed = sum(await asyncio.gather(*asked))
        return Crowd(crowd.took, failed, sum(await asyncio.gather(*heard)))


async def _ask(client: httpx2.AsyncClient, number: int, end: float, took: list[float]) -> int:
    """Ask now and then for something else; return how often there was no good answer."""
    failed = 0
    await asyncio.sleep(random.uniform(0, EVERY_SECONDS))  # noqa: S311 -- no secret
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            answer = await client.get(random.choice(_calls(number)))  # noqa: S311 -- no secret
            failed += not answer.is_success
        except httpx2.HTTPError:
            failed += 1
        took.append(time.monotonic() - began)
        await asyncio.sleep(EVERY_SECONDS)
    return failed


def _calls(number: int) -> tuple[str, ...]:
    run = f"/runs/{number}"
    return (run, run, "/runs", f"{run}/metrics?keys=loss", f"{run}/events", "/queue", "/datasets")


async def _follow(client: httpx2.AsyncClient, number: int, end: float) -> int:
    heard = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, end - time.monotonic())):
            async with client.stream("GET", f"/runs/{number}/stream") as answer:
                async for line in answer.aiter_lines():
                    heard += line.startswith("event:")
    return heard


def _memory(studio: Studio) -> Iterator[Measurement]:
    """Ask many times, and look at what the web process holds before and after."""
    assert studio.process is not None
    web = psutil.Process(studio.process.pid)
    asyncio.run(_many(studio.url, WARM_UP))
    before = web.memory_info().rss
    asyncio.run(_many(studio.url, REQUESTS))
    yield Measurement("memory of the web process", before / 1e6, "MB")
    yield Measurement(
        f"  more after {REQUESTS:,} requests", (web.memory_info().rss - before) / 1e6, "MB"
    )


async def _many(url: str, count: int) -> None:
    async with httpx2.AsyncClient(base_url=f"{url}/api/v1", timeout=60, trust_env=False) as client:

        async def some() -> None:
            for i in range(count // AT_ONCE):
                (await client.get(_calls(1)[i % 7])).raise_for_status()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
