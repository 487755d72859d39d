"""Who is told a secret: the process that needs it, and none beside it."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine

from studio.db.outbox import Channel
from studio.db.session import unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.methods import RECIPE_ADAPTER
from studio.protocols.run_dir import RunDir
from studio.services.accounts import secrets
from studio.services.notifications import deliveries
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.notifications import NotificationSender
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.tasks import TaskCommands
from tests.fakes.message_receivers import WebhookReceiver
from tests.support.factories import make_run
from tests.support.waiting import wait_until
from tests.support.worker_processes import stop_processes

HERE = Path(__file__).parents[1]
STORED, TOLD = "hf_stored_on_the_page", "hf_told_by_the_environment"


@pytest.fixture
def loop(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerLoop]:
    """Return a worker whose environment has secrets, as its database does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for name in ("HF_TOKEN", "studio_s3_secret", "STUDIO_SECRET_KEY", "STUDIO_SMTP_URL"):
        monkeypatch.setenv(name, TOLD)
    runner = (sys.executable, str(HERE / "fakes" / "runner.py"), "wait")
    chore = (sys.executable, str(HERE / "fakes" / "task.py"), "wait")
    keep(engine, settings, "hub_token", STORED)
    keep(engine, settings, "webhook_secret", STORED)
    made = WorkerLoop(
        engine, settings, LocalLauncher(command=runner), commands=TaskCommands(task=chore)
    )
    made.adopt(alone=True)
    yield made
    assert isinstance(made.launcher, LocalLauncher)
    for handle in made.launcher._children:
        made.launcher.kill(handle)
        wait_until(partial(is_gone, made, handle))
    stop_processes(made)


def is_gone(loop: WorkerLoop, handle: str) -> bool:
    return loop.launcher.poll(handle) is not None


def keep(engine: Engine, settings: Settings, name: str, value: str) -> None:
    with unit_of_work(engine) as db:
        secrets.store(db, settings, name, value, "ann")


def ask(engine: Engine, kind: str, **params: object) -> int:
    with unit_of_work(engine) as db:
        return tasks.enqueue(db, kind, f"{kind}:1", dict(params)).id or 0


def told(pid: int | None) -> set[str]:
    """Return the names of what a process finds in its environment that is secret."""
    found = psutil.Process(pid or 0).environ()
    return {name for name, value in found.items() if value in (STORED, TOLD)}


def started(loop: WorkerLoop, engine: Engine, chore_id: int) -> Task:
    loop.tick()
    with unit_of_work(engine) as db:
        return tasks.get(db, chore_id)


def test_trainer_and_run_folder_receive_no_secrets(loop: WorkerLoop, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_id = make_run(db).id or 0
    loop.tick()
    followed = loop.monitored[run_id]
    folder = RunDir(loop.settings.runs / str(run_id))
    wait_until(lambda: folder.events.read()[0] != [])

    assert told(int(followed.handle.split("@")[0])) == set()
    files = [path for path in folder.root.rglob("*") if path.is_file()]
    holding = [path for path in files if any(one in path.read_text() for one in (STORED, TOLD))]
    assert holding == []


def test_run_with_hub_model_receives_only_hub_token(loop: WorkerLoop, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db)
        run.recipe = run.recipe.model_copy(update={"base_model": "org/gated"})
        run_id = run.id or 0
    loop.tick()

    assert told(int(loop.monitored[run_id].handle.split("@")[0])) == {"HF_TOKEN"}


def test_run_whose_grader_asks_an_endpoint_receives_only_its_keys(
    loop: WorkerLoop, engine: Engine, settings: Settings
) -> None:
    keep(engine, settings, "judge_key", STORED)
    grader = {
        "type": "score_model",
        "name": "judge",
        "model": "endpoint:judge",
        "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
    }
    with unit_of_work(engine) as db:
        run = make_run(db)
        values = run.recipe.model_dump(include={"base_model", "dataset", "precision"})
        grpo = values | {"method": "grpo", "reward": {"grader": grader}}
        run.recipe = RECIPE_ADAPTER.validate_python(grpo)
        run_id = run.id or 0
    loop.tick()

    assert told(int(loop.monitored[run_id].handle.split("@")[0])) == {"STUDIO_JUDGE_KEY"}


def test_download_task_receives_only_hub_token(loop: WorkerLoop, engine: Engine) -> None:
    chore = started(loop, engine, ask(engine, "download", code=False))

    assert told(chore.pid) == {"STUDIO_HUB_TOKEN"}


def test_url_fetch_task_receives_no_secrets(loop: WorkerLoop, engine: Engine) -> None:
    source = {"kind": "url", "url": "https://example.org/rows.jsonl"}
    chore = started(loop, engine, ask(engine, "fetch", source=source))

    assert told(chore.pid) == set()


def test_task_fails_at_once_when_its_secret_cannot_be_read(
    loop: WorkerLoop, engine: Engine
) -> None:
    loop.settings.secret_file.unlink()

    chore = started(loop, engine, ask(engine, "download", code=False))

    assert chore.status is TaskStatus.FAILED
    assert "is missing" in chore.error_message
    assert "Restore the file" in chore.error_hint


def test_webhook_waits_while_stored_url_cannot_be_decrypted(
    engine: Engine, settings: Settings, hook: WebhookReceiver
) -> None:
    hook.go_on.set()
    keep(engine, settings, "webhook_url", f"{hook.url}/in")
    with unit_of_work(engine) as db:
        deliveries.enqueue_test(db, Channel.WEBHOOK)
    key = settings.secret_file.read_bytes()
    settings.secret_file.unlink()
    messenger = NotificationSender(
        engine, settings.model_copy(update={"allow_internal_addresses": True})
    )

    assert messenger._send_next() is False
    settings.secret_file.write_bytes(key)
    assert messenger._send_next() is True

    assert [one.path for one in hook.posted] == ["/in"]
