"""Viewers of a run: each follows its stream as a browser does, and goes on after every cut."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.services.runs import attempts, runs
from tests.support.factories import metrics_event
from tests.support.live_studio import UNVERIFIED_TLS

PATIENCE_SECONDS = 180
KEYS = 10
"""Numbers told at each step."""


def steps_seen(url: str, last: int) -> list[int]:
    """Follow a stream until a step is seen, and return all steps in the order they came."""
    seen: list[int] = []
    place, end = "", time.monotonic() + PATIENCE_SECONDS
    while last not in seen:
        assert time.monotonic() < end, f"Saw {len(seen)} steps, never step {last}."
        try:
            place = _listen(url, place, seen, last)
        except httpx2.TransportError:
            time.sleep(0.05)  # the server is away: a browser tries again, too
    return seen


def _listen(url: str, place: str, seen: list[int], last: int) -> str:
    asked: dict[str, Any] = {"timeout": 10, "trust_env": False, "verify": UNVERIFIED_TLS}
    headers = {"Last-Event-ID": place} if place else {}
    kind = ""
    with httpx2.stream("GET", url, headers=headers, **asked) as answer:
        try:
            for line in answer.iter_lines():
                name, _colon, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind == "metrics":
                    seen += [row["step"] for row in json.loads(value)]
                elif name == "id":
                    place = value
                elif not line and last in seen:
                    return place
        except httpx2.TransportError:
            return place
    return place


@contextmanager
def watch_streams(url: str, count: int, last: int) -> Iterator[list[Future[list[int]]]]:
    """Have so many viewers follow a stream until a step."""
    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(steps_seen, url, last) for _ in range(count)]


def add_metrics(engine: Engine, run_id: int, first: int, count: int) -> float:
    """Store the numbers of some steps in one transaction. Return how many seconds that took."""
    metrics = {f"m{i}": 0.5 for i in range(KEYS)}
    told = [metrics_event(step, **metrics) for step in range(first, first + count)]
    began = time.perf_counter()
    with unit_of_work(engine) as db:
        run = runs.get(db, run_id)
        attempts.apply_events(db, run, told, run.events_offset)
    return time.perf_counter() - began
