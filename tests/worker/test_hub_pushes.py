"""Exports uploaded by real processes to a hub that speaks the real one's protocol."""

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Export
from studio.protocols.run_dir import RunDir
from studio.services.exports import hub_pushes
from studio.services.queue import task_results
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from tests.fakes.hub_server import HubServer
from tests.support.factories import make_finished_run
from tests.support.worker_processes import stop_processes, wait_for_task, wait_until_final

HERE = Path(__file__).parents[1]
WEIGHTS = {f"model-{part}.safetensors": bytes([part]) * 100_000 for part in (1, 2)}
SHAS = [hashlib.sha256(content).hexdigest() for content in WEIGHTS.values()]


@pytest.fixture
def loop(
    engine: Engine, settings: Settings, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerLoop]:
    """Make a worker whose hub is on this machine, with an export to upload."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    runner = (sys.executable, str(HERE / "fakes" / "runner.py"), "succeed")
    known = {"hub_endpoint": hub.url, "hub_token": SecretStr(hub.token)}
    loop = WorkerLoop(engine, settings.model_copy(update=known), LocalLauncher(command=runner))
    loop.adopt(alone=True)
    with unit_of_work(engine) as db:
        run = make_finished_run(db, "mine")
        db.add(
            Export(run_id=run.id or 0, kind="full", dtype="float32", status=TaskStatus.SUCCEEDED)
        )
    folder = RunDir(settings.runs / "1").export(1).files
    folder.mkdir(parents=True)
    for name, content in WEIGHTS.items():
        (folder / name).write_bytes(content)
    yield loop
    stop_processes(loop)


def ask(loop: WorkerLoop) -> None:
    with unit_of_work(loop.engine) as db:
        hub_pushes.create(db, loop.settings, 1, 1, "me/mine", is_private=True)


def test_export_is_uploaded_with_the_secret_token(loop: WorkerLoop, hub: HubServer) -> None:
    ask(loop)
    made = wait_until_final(loop)
    repo = hub.repos["model", "me/mine"]

    assert (made.status, made.error_message) == (TaskStatus.SUCCEEDED, "")
    assert made.result["revision"] == repo.names["main"]
    assert repo.commits[repo.names["main"]].items() >= WEIGHTS.items()
    assert repo.messages == ["Add mine, exported in float32 by Mantissa Studio"]
    assert hub.token not in str(made.model_dump())


def test_killed_upload_resumes_with_the_missing_file(loop: WorkerLoop, hub: HubServer) -> None:
    hub.uploads.held.clear()
    hub.uploads.held_after = 1
    ask(loop)
    wait_for_task(loop, lambda _task: len(hub.uploads.sent) == 1)
    child = loop.scheduler.tasks.monitored[1].process.child
    assert child is not None
    child.send_signal(signal.SIGKILL)
    killed = wait_until_final(loop)
    assert (killed.status, hub.repos["model", "me/mine"].messages) == (TaskStatus.FAILED, [])

    hub.uploads.held.set()
    with unit_of_work(loop.engine) as db:
        tasks.retry(tasks.get(db, 1))
    made = wait_until_final(loop)

    assert (made.status, made.error_message) == (TaskStatus.SUCCEEDED, "")
    assert hub.uploads.sent == SHAS


def test_cancelled_upload_commits_nothing(loop: WorkerLoop, hub: HubServer) -> None:
    hub.uploads.held.clear()
    ask(loop)
    wait_for_task(loop, lambda _task: ("model", "me/mine") in hub.repos)
    with unit_of_work(loop.engine) as db:
        task_results.cancel(db, 1)
    cancelled = wait_until_final(loop)

    assert cancelled.status is TaskStatus.CANCELLED
    assert hub.repos["model", "me/mine"].messages == []
