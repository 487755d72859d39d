"""An endpoint outlives its studio: kills of the worker, of web, and of both; clients that go."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from studio.db.session import unit_of_work
from studio.db.states import EndpointState
from studio.services.endpoints import endpoints
from studio.services.endpoints.sources import Source
from studio.services.operations import home
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.serving import engine_process
from tests.support import served_exports
from tests.support.live_studio import UNVERIFIED_TLS, Studio
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ASKED = {"model": "pets", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def studio(
    make_studio: Callable[[], Studio], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Studio]:
    program = served_exports.write_program(tmp_path / "bin")
    monkeypatch.setenv("STUDIO_LLAMA_SERVER", str(program))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    studio = make_studio()
    yield studio
    for endpoint_id in engine_process.list_marked(studio.home):
        engine_process.kill_marked(studio.home, endpoint_id)


def add_export(studio: Studio, **part: Any) -> Source:  # noqa: ANN401 -- any field of Part
    settings = Settings(home=studio.home)
    engine = home.open_home(settings)
    with unit_of_work(engine) as db:
        source = served_exports.add(db, settings, **part)
    engine.dispose()
    return source


def serve(studio: Studio, source: Source) -> None:
    body = {"name": "pets", "run_id": source.run_id, "export_id": source.export_id}
    studio.api.post("/endpoints", json=body).raise_for_status()


def state(studio: Studio) -> str:
    told: str = studio.api.get("/endpoints/1").raise_for_status().json()["state"]
    return told


def process_of(studio: Studio) -> int:
    """Return the process of the endpoint, as the database has it."""
    engine = home.open_home(Settings(home=studio.home))
    with unit_of_work(engine) as db:
        row = endpoints.get(db, 1)
    engine.dispose()
    assert row.state is EndpointState.READY
    return row.pid or 0


def answer(studio: Studio) -> str:
    found = httpx2.post(
        f"{studio.url}/v1/chat/completions",
        json=ASKED,
        timeout=120,
        trust_env=False,
        verify=UNVERIFIED_TLS,
    )
    text: str = found.raise_for_status().json()["choices"][0]["message"]["content"]
    return text


def worker_pids(studio: Studio) -> list[int]:
    """Return the worker; none between two of them."""
    engine = home.open_home(Settings(home=studio.home))
    with unit_of_work(engine) as db:
        pids = [worker.pid for worker in workers.list_alive(db)]
    engine.dispose()
    return pids


def test_endpoint_survives_kills_of_worker_and_studio(studio: Studio) -> None:
    serve(studio, add_export(studio))
    assert answer(studio) == "Good."
    served = process_of(studio)

    old = psutil.Process(worker_pids(studio)[0])
    old.kill()
    assert answer(studio) == "Good."
    wait_until(lambda: studio.api.get("/health").status_code == httpx2.codes.OK)
    wait_until(lambda: worker_pids(studio) not in ([], [old.pid]))
    assert process_of(studio) == served

    studio.kill()
    studio.wait()
    assert psutil.pid_exists(served)
    studio.start()
    assert answer(studio) == "Good."
    assert process_of(studio) == served

    studio.api.post("/endpoints/1/stop").raise_for_status()
    wait_until(lambda: not engine_process.list_marked(studio.home))
    assert state(studio) == "stopped"


def test_client_that_goes_stops_the_answer(studio: Studio, tmp_path: Path) -> None:
    source = add_export(studio, pauses_until=str(tmp_path / "never"))
    serve(studio, source)

    with httpx2.stream(
        "POST",
        f"{studio.url}/v1/chat/completions",
        json=ASKED | {"stream": True},
        timeout=120,
        trust_env=False,
        verify=UNVERIFIED_TLS,
    ) as response:
        first = next(response.iter_lines())
        assert json.loads(first[6:])["choices"][0]["delta"]["content"] == "Go"

    hung_up = served_exports.files(Settings(home=studio.home), source) / "hung-up"
    wait_until(hung_up.exists)
