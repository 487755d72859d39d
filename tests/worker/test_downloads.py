"""Models fetched by real processes from a hub that speaks the real one's protocol."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.services.models import downloads, models, remote_code_trust
from studio.services.queue import task_results
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from tests.fakes.hub_server import HubServer, Repo
from tests.support.worker_processes import stop_processes, wait_for_task, wait_until_final
from tests.unit.weights import safetensors_folders

HERE = Path(__file__).parents[1]
PATIENCE_SECONDS = 60
SIZE = 3_000_000


@pytest.fixture
def loop(
    engine: Engine, settings: Settings, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerLoop]:
    """Make a worker whose hub is on this machine; no chore of its is left running."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    runner = (sys.executable, str(HERE / "fakes" / "runner.py"), "succeed")
    asked = settings.model_copy(update={"hub_endpoint": hub.url})
    loop = WorkerLoop(engine, asked, LocalLauncher(command=runner))
    loop.adopt(alone=True)
    yield loop
    stop_processes(loop)


@pytest.fixture
def repo(hub: HubServer, tmp_path: Path) -> Repo:
    made = safetensors_folders.write_empty(
        tmp_path / "made", {"a": ("F32", [SIZE // 4])}, auto_map={"AutoConfig": "own.Own"}
    )
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    return hub.model("tiny/one", files | {"own.py": b"print()"})


def ask(loop: WorkerLoop, repo: Repo) -> None:
    found = downloads.inspect_repo(loop.settings, repo.id, "")
    with unit_of_work(loop.engine) as db:
        downloads.enqueue(db, found)


def part(settings: Settings) -> int:
    """Return how much of the weights has come."""
    path = settings.tasks / "1" / "files" / "model.safetensors.part"
    return path.stat().st_size if path.exists() else 0


def process_of(loop: WorkerLoop) -> subprocess.Popen[bytes]:
    found = loop.scheduler.tasks.monitored[1].process.child
    return found or pytest.fail("It was our child.")


def test_download_creates_model_with_source_and_revision(loop: WorkerLoop, repo: Repo) -> None:
    ask(loop, repo)
    made = wait_until_final(loop)
    with read_session(loop.engine) as db:
        model = models.find_by_name(db, "tiny/one")

    assert (made.status, made.error_message) == (TaskStatus.SUCCEEDED, "")
    assert model is not None
    assert (model.kind, model.repo, model.revision, model.facts["parameters"]) == (
        "hub",
        "tiny/one",
        repo.commit("main"),
        SIZE // 4,
    )


def test_killed_download_resumes_from_partial_file(
    loop: WorkerLoop, hub: HubServer, repo: Repo, settings: Settings
) -> None:
    hub.held.clear()
    hub.held_after = SIZE // 2
    ask(loop, repo)
    wait_for_task(loop, lambda _chore: part(settings) == SIZE // 2)
    process_of(loop).send_signal(signal.SIGKILL)
    killed = wait_until_final(loop)
    assert (killed.status, part(settings)) == (TaskStatus.FAILED, SIZE // 2)

    hub.held.set()
    with unit_of_work(loop.engine) as db:
        tasks.retry(tasks.get(db, 1))
    made = wait_until_final(loop)

    assert (made.status, made.error_message) == (TaskStatus.SUCCEEDED, "")
    # On a busy machine, a connection may end before its first byte and be made again.
    first, *resumed = [one.range for one in hub.fetched("model.safetensors")]
    assert (first, set(resumed)) == ("", {f"bytes={SIZE // 2}-"})


def test_cancelled_download_leaves_no_files(
    loop: WorkerLoop, hub: HubServer, repo: Repo, settings: Settings
) -> None:
    hub.held.clear()
    hub.held_after = SIZE // 2
    ask(loop, repo)
    wait_for_task(loop, lambda _chore: part(settings) == SIZE // 2)
    with unit_of_work(loop.engine) as db:
        task_results.cancel(db, 1)
    wait_until_final(loop)

    assert [one.name for one in settings.models.iterdir()] == ["starter"]
    assert not (settings.tasks / "1").exists()


def test_remote_code_is_fetched_on_consent_and_deleted_on_revoke(
    loop: WorkerLoop, repo: Repo
) -> None:
    ask(loop, repo)
    wait_until_final(loop)
    with unit_of_work(loop.engine) as db:
        model = models.find_by_name(db, "tiny/one")
        assert model is not None
        remote_code_trust.grant(db, model, repo.commit("main"))
        assert downloads.enqueue_code(db, model) is not None
    wait_until_final(loop, 2)
    with unit_of_work(loop.engine) as db:
        model = models.find_by_name(db, "tiny/one")
        assert model is not None
        remote_code_trust.require_consent(model)
        folder = Path(model.location)
        assert (folder / "own.py").read_bytes() == b"print()"
        remote_code_trust.revoke(model)

    assert not (folder / "own.py").exists()
