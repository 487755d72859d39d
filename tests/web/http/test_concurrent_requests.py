"""Many requests at once: none may wait for what only another that waits could give."""

import asyncio
from http import HTTPStatus

import httpx2
from sqlalchemy import Engine

from studio.db.session import open_database
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.live_studio import QUICK

CROWD = 120
"""Three times the threads that answer requests."""


def test_concurrent_submissions_are_each_stored_once(settings: Settings) -> None:
    # Who must wait in vain is told so soon, and fails the test.
    engine = open_database(settings, busy_seconds=30)
    try:
        answers = asyncio.run(submitted(engine, settings))
    finally:
        engine.dispose()
    ids = [answer.json()["id"] for answer in answers if answer.status_code == HTTPStatus.CREATED]
    assert len(set(ids)) == CROWD


async def submitted(engine: Engine, settings: Settings) -> list[httpx2.Response]:
    transport = httpx2.ASGITransport(app=create_app(engine, settings))
    async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as client:

        def submit(number: int) -> asyncio.Task[httpx2.Response]:
            body = {"name": f"run {number}", "recipe": QUICK}
            return asyncio.create_task(client.post("/api/v1/runs", json=body, timeout=120))

        return await asyncio.gather(*(submit(number) for number in range(CROWD)))
