"""The hub: a commit by anybody wakes every viewer, and the end reaches all of them."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy import Engine

from studio.db.commit_signals import FOLDER
from studio.db.session import read_session, sqlite_driver, unit_of_work
from studio.services.runs import runs
from studio.settings import Settings
from studio.web.api.runs import event_streams
from studio.web.http.event_hub import SLOW_SECONDS, EventHub
from tests.support.factories import make_finished_run, make_run, make_running

HOURS = 3600.0
PATIENCE_SECONDS = 60.0

WRITER = """
import sys
from pathlib import Path
from studio.db.session import open_engine, unit_of_work
from studio.db.tables import Worker
engine = open_engine(Path(sys.argv[1]))
for name in sys.stdin:
    with unit_of_work(engine) as db:
        db.add(Worker(name=name, pid=1, slots=1))
"""


def test_commits_of_another_process_wake_a_hub_that_sleeps(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, "-c", WRITER, str(settings.database_file)]

    async def watch(write: Callable[[str], object]) -> list[bool]:
        hub, woken = EventHub(engine, look_seconds=HOURS), []
        async with hub.running():
            seen = await hub.wait(hub.version)
            for name in ("a\n", "b\n", "c\n"):
                await asyncio.to_thread(write, name)
                woken.append(await hub.wait(seen, PATIENCE_SECONDS) == seen + 1)
                seen = hub.version
        return woken

    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1) as writer:
        assert writer.stdin is not None
        assert asyncio.run(watch(writer.stdin.write)) == [True, True, True]


def test_commits_that_are_not_announced_are_found_by_looking(
    engine: Engine, settings: Settings
) -> None:
    def write() -> None:
        with closing(sqlite_driver().connect(settings.database_file)) as other, other:
            other.execute("UPDATE alembic_version SET version_num = version_num")

    assert asyncio.run(wakes(EventHub(engine, look_seconds=0.1), write))


def test_commits_are_found_where_there_can_be_no_sockets(
    engine: Engine, settings: Settings
) -> None:
    (settings.home / FOLDER).write_text("not a folder", encoding="utf-8")

    def write() -> None:
        with unit_of_work(engine) as db:
            make_run(db, "a")

    assert asyncio.run(wakes(EventHub(engine, look_seconds=HOURS), write))


async def wakes(hub: EventHub, write: Callable[[], None]) -> bool:
    """Whether a viewer that waits is woken by what `write` commits."""
    async with hub.running():
        seen = await hub.wait(hub.version)
        await asyncio.to_thread(write)
        return await hub.wait(seen, PATIENCE_SECONDS) != seen


def test_each_commit_wakes_waiting_viewers(engine: Engine) -> None:
    async def watch() -> list[bool]:
        hub, woken = EventHub(engine), []
        async with hub.running():
            seen = await hub.wait(hub.version)
            for name in ("a", "b"):
                waiting = asyncio.create_task(hub.wait(seen, seconds=30))
                await asyncio.to_thread(submit, name)
                woken.append(await waiting != seen)
                seen = hub.version
        return woken

    def submit(name: str) -> None:
        with unit_of_work(engine) as db:
            make_run(db, name)

    assert asyncio.run(watch()) == [True, True]


def test_slow_streams_wake_once_for_many_commits_and_see_the_last(engine: Engine) -> None:
    commits = 6

    def submit(name: str) -> None:
        with unit_of_work(engine) as db:
            make_run(db, name)

    def newest() -> int:
        with read_session(engine) as db:
            return runs.newest(db, runs.RunFilter(), limit=1)[0].id or 0

    async def watch() -> tuple[int, float, int]:
        hub, clock = EventHub(engine), asyncio.get_running_loop().time
        async with hub.running():
            seen, slow_seen = await hub.wait(hub.version), await hub.slow.wait(0)
            began = clock()
            for number in range(commits):
                await asyncio.to_thread(submit, f"run {number}")
                seen = await hub.wait(seen)
            woken = hub.slow.version - slow_seen
            while await hub.slow.read_shared("newest", newest) < commits:
                await hub.slow.wait(hub.slow.version)
            return woken, clock() - began, seen

    woken, seconds, seen = asyncio.run(watch())
    assert seen > commits
    assert woken <= 1 + seconds / SLOW_SECONDS < commits


def test_shutdown_wakes_waiting_viewers(engine: Engine) -> None:
    async def end() -> bool:
        hub = EventHub(engine)
        async with hub.running():
            seen = await hub.wait(hub.version)
            waiting = asyncio.create_task(hub.wait(seen, seconds=3600))
            await asyncio.sleep(0)
        await waiting
        return hub.is_closing

    assert asyncio.run(end())


def test_viewers_share_one_read_between_commits(engine: Engine) -> None:
    looks: list[str] = []

    def look() -> int:
        looks.append("a look")
        return len(looks)

    async def watch() -> list[list[int]]:
        hub, seen = EventHub(engine), []
        async with hub.running():
            version = await hub.wait(hub.version)
            seen.append(await asyncio.gather(*(hub.read_shared("a run", look) for _ in range(50))))
            await asyncio.to_thread(submit)
            await hub.wait(version)
            seen.append(await asyncio.gather(*(hub.read_shared("a run", look) for _ in range(50))))
        return seen

    def submit() -> None:
        with unit_of_work(engine) as db:
            make_run(db, "a")

    assert asyncio.run(watch()) == [[1] * 50, [2] * 50]


def test_live_runs_are_included_despite_many_newer_runs(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        first, ended = make_running(db, "first").id, make_finished_run(db, "ended").id
        for place in range(event_streams.RECENT_RUNS):
            make_run(db, f"waits {place}")

    seen = {brief.id for brief in event_streams.read_recent_runs(engine, frozenset({ended or 0}))}
    assert {first, ended} < seen
    assert len(seen) == event_streams.RECENT_RUNS + 2


def test_cancelled_viewer_does_not_cancel_shared_read(engine: Engine) -> None:
    asked, answer = threading.Event(), threading.Event()

    def look() -> str:
        asked.set()
        answer.wait(30)
        return "news"

    async def watch() -> str:
        hub = EventHub(engine)
        async with hub.running():
            first = asyncio.create_task(hub.read_shared("a run", look))
            await asyncio.to_thread(asked.wait, 30)
            second = asyncio.create_task(hub.read_shared("a run", look))
            await asyncio.sleep(0)
            first.cancel()
            answer.set()
            return await second

    assert asyncio.run(watch()) == "news"
