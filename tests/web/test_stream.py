"""The hub: a commit by anybody wakes every viewer, and the end reaches all of them."""

import asyncio

from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.web.stream import Hub
from tests.factories import make_run


def test_each_commit_wakes_those_who_wait(engine: Engine) -> None:
    async def watch() -> list[bool]:
        hub, woken = Hub(engine), []
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


def test_the_end_wakes_everybody(engine: Engine) -> None:
    async def end() -> bool:
        hub = Hub(engine)
        async with hub.running():
            seen = await hub.wait(hub.version)
            waiting = asyncio.create_task(hub.wait(seen, seconds=3600))
            await asyncio.sleep(0)
        await waiting
        return hub.is_closing

    assert asyncio.run(end())
