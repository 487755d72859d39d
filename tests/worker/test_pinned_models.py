"""Endpoints of the studio's own engine, with the real inference service and a real model."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.column_types import now
from studio.db.endpoints import Endpoint
from studio.db.session import read_session, unit_of_work
from studio.db.states import EndpointState
from studio.db.tables import Model
from studio.protocols.inference_service import GenerationRequest
from studio.services.endpoints import endpoints, lifecycle, usage
from studio.services.endpoints.reasons import GAVE_UP, UNUSED
from studio.services.endpoints.sources import Source
from studio.services.models import service_clients
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from tests.support import evaluated_runs, factories
from tests.support.factories import make_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 400

Start = Callable[[], WorkerLoop]


@pytest.fixture
def start(engine: Engine, settings: Settings) -> Iterator[Start]:
    loops: list[WorkerLoop] = []

    def begin() -> WorkerLoop:
        loop = WorkerLoop(engine, settings, LocalLauncher(wanted_slots=1))
        loops.append(loop)
        loop.adopt(alone=True)
        return loop

    yield begin
    for loop in loops:
        loop.inference.close()
        for attempt in loop.monitored.values():
            loop.launcher.kill(attempt.handle)
            wait_until(partial(has_ended, loop, attempt.handle))


def has_ended(loop: WorkerLoop, handle: str) -> bool:
    return loop.launcher.poll(handle) is not None


@pytest.fixture
def served(engine: Engine, settings: Settings, starter_model: Path) -> Path:
    """Serve a run whose result is the starter's model. Return its folder."""
    with unit_of_work(engine) as db:
        run = factories.make_finished_run(db, adapter={"kind": "full"})
        artifacts = evaluated_runs.lay_out(db, settings, run).artifacts
        shutil.rmtree(artifacts)
        shutil.copytree(starter_model, artifacts)
        endpoints.create(db, settings, "pets", Source(run_id=run.id or 0), "studio", 10)
    return artifacts


def until(loop: WorkerLoop, is_so: Callable[[Endpoint], bool]) -> Endpoint:
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 50):
        loop._tick_inference()
        loop.tick()
        with read_session(loop.engine) as db:
            row = endpoints.get(db, 1)
        if is_so(row):
            return row
        pause.wait(0.02)
    raise AssertionError(f"Still {row}.")


def ready(row: Endpoint) -> bool:
    return row.state is EndpointState.READY


def answer(loop: WorkerLoop, request: GenerationRequest) -> str:
    """Ask the service as web does, while the worker ticks."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.02):
            loop._tick_inference()

    async def ask() -> str:
        stream = await service_clients.open_stream(loop.settings, request)
        text = ""
        while (chunk := await stream.read()).end is None:
            text += chunk.text
        await stream.close()
        return text

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        return asyncio.run(ask())
    finally:
        done.set()
        thread.join()


def question(folder: Path, **fields: str) -> GenerationRequest:
    return GenerationRequest(
        model=str(folder), ids=[5, 6, 7], stops=[], most=3, temperature=0, **fields
    )


def test_model_stays_loaded_while_others_are_asked(
    engine: Engine, start: Start, served: Path, starter_model: Path
) -> None:
    loop = start()
    until(loop, ready)
    child = loop.inference.service.child
    assert child is not None
    assert loop.inference.slots == 1

    alone = answer(loop, question(served, pins="pets"))
    answer(loop, question(starter_model))
    chunks: list[bool] = []

    async def ask() -> None:
        stream = await service_clients.send_generation_request(loop.settings, question(served))
        while (chunk := await stream.read()).end is None:
            chunks.append(chunk.loading)
        await stream.close()

    asyncio.run(ask())
    assert not any(chunks), "It was loaded again."
    assert answer(loop, question(served)) == alone
    until(loop, ready)
    assert loop.inference.service.child is child

    def is_unused(row: Endpoint) -> None:
        row.ready_at = row.last_used_at = now() - timedelta(hours=1)

    with unit_of_work(engine) as db:
        is_unused(endpoints.get(db, 1))
    assert until(loop, lambda row: row.state is EndpointState.IDLE).note == UNUSED
    until(loop, lambda _row: not loop.inference.service.is_running)
    with unit_of_work(engine) as db:
        assert usage.begin(db, "pets") is not None
    until(loop, ready)


@pytest.mark.usefixtures("served")
def test_killed_service_loads_the_model_again_and_runs_go_first(
    engine: Engine, start: Start
) -> None:
    loop = start()
    until(loop, ready)
    child = loop.inference.service.child
    assert child is not None
    child.kill()
    child.wait()
    crashed = until(loop, lambda row: row.crashes == 1)
    assert crashed.error_message == "The inference service ended with signal 9."
    until(loop, ready)

    with unit_of_work(engine) as db:
        run_id = make_run(db).id or 0
    idle = until(loop, lambda row: row.state is EndpointState.IDLE)
    assert idle.note == GAVE_UP
    until(loop, lambda _row: run_id in loop.monitored)


@pytest.mark.usefixtures("served")
def test_next_worker_loads_the_model_again(engine: Engine, start: Start) -> None:
    first = start()
    until(first, ready)
    first.inference.close()  # It ends with its worker.

    second = start()
    with read_session(engine) as db:
        assert endpoints.get(db, 1).state is EndpointState.STARTING
    until(second, ready)


def test_missing_files_fail_in_words(
    engine: Engine, settings: Settings, start: Start, served: Path
) -> None:
    shutil.rmtree(served)

    row = until(start(), lambda one: one.state is EndpointState.FAILING)
    assert row.error_message == "Run 1 has no model to serve."
    with read_session(engine) as db:
        assert db.get(Model, 1) is not None
    assert row.crashes < lifecycle.MAX_CRASHES
    assert settings.runs.is_dir()
