"""The worker of a real studio dies, and the studio itself: who notices, and who is left."""

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2
import psutil
import pytest

from studio.processes import unix_sockets
from studio.protocols import tokenizer_service
from studio.services.storage import locks
from studio.services.workers.workers import FILE_NAME
from tests.faults.test_processes import LONG, trainer_of
from tests.support.live_studio import (
    Studio,
    free_port,
    get_run,
    launcher_process,
    metric_steps,
    submit_run,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults


def worker_of(studio: Studio) -> psutil.Process:
    """Wait for the worker that has taken the queue, and return its process."""
    assert studio.process is not None
    wait_until(lambda: locks.describe_holder(studio.home, "worker").startswith("process "))
    return psutil.Process(int(locks.describe_holder(studio.home, "worker").split()[1]))


def helpers_of(worker: psutil.Process) -> list[psutil.Process]:
    """Return what a worker has started for itself: launcher, desk, speaker; no run."""
    told = (
        "studio.runner.prefork_server",
        "studio.runner.tokenizer.main",
        "studio.runner.inference.main",
    )
    found = []
    for one in worker.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(name in one.cmdline() for name in told) and not one.name().startswith("studio"):
                found.append(one)
    return found


def health(studio: Studio) -> tuple[int, dict[str, Any]]:
    answer = studio.api.get("/health")
    return answer.status_code, answer.json()


def start_desk(studio: Studio) -> None:
    unix_sockets.connect(tokenizer_service.socket_path(studio.home), timeout=30).close()
    wait_until((studio.home / "desk.log").exists)


def test_killed_worker_is_restarted(studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    wait_until(lambda: get_run(studio, number)["step"] >= 3)
    first = worker_of(studio)
    first.kill()
    wait_until((studio.home / FILE_NAME).exists)
    page = httpx2.get(f"{studio.url}/queue", trust_env=False).text
    wait_until(lambda: health(studio)[0] == httpx2.codes.OK)
    seen = get_run(studio, number)["step"]
    wait_until(lambda: get_run(studio, number)["step"] > seen)

    assert worker_of(studio) != first
    assert (get_run(studio, number)["attempt"], health(studio)[1]["status"]) == (1, "ok")
    assert metric_steps(studio, number)[:3] == [1.0, 2.0, 3.0]
    assert 'id="worker-status"' in page
    trainer_of(studio, number).kill()


def test_worker_start_error_is_shown_until_worker_starts(studio: Studio) -> None:
    lock = studio.home / "worker.lock"
    worker_of(studio).kill()
    wait_until(
        lambda: (
            not locks.describe_holder(studio.home, "worker") or (studio.home / FILE_NAME).exists()
        )
    )
    with locks.single_process(studio.home, "worker", "a test", patience_seconds=60):
        assert lock.exists()
        wait_until(lambda: "exited with code 1" in str(health(studio)[1]))
        page = httpx2.get(f"{studio.url}/", trust_env=False).text
        assert "The worker exited with code 1." in page
        assert f"Another studio is already using {studio.home}" in page
        assert str(studio.home) not in str(health(studio)[1])
    wait_until(lambda: health(studio)[0] == httpx2.codes.OK)

    assert "The worker exited" not in httpx2.get(f"{studio.url}/", trust_env=False).text


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGKILL,
    ],
)
def test_stopped_studio_leaves_only_training_processes(
    make_studio: Callable[..., Studio], number: signal.Signals
) -> None:
    studio = make_studio(warm=True)
    launcher_process(studio)
    run = submit_run(studio, max_steps=LONG)
    wait_until(lambda: get_run(studio, run)["step"] >= 3)
    start_desk(studio)
    trainer, worker = trainer_of(studio, run), worker_of(studio)
    # A process that has just been forked does not have its own name yet.
    wait_until(lambda: len(helpers_of(worker)) == 2)
    helpers = [worker, *helpers_of(worker)]
    assert studio.process is not None
    studio.process.send_signal(number)
    code = studio.wait()
    wait_until(lambda: not any(map(is_there, helpers)))
    events = studio.home / "runs" / str(run) / "events.jsonl"
    size = events.stat().st_size
    wait_until(lambda: events.stat().st_size > size)
    trainer.kill()

    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)


def is_there(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_helper_processes_exit_when_worker_is_killed(make_studio: Callable[..., Studio]) -> None:
    studio = make_studio(warm=True)
    worker = worker_of(studio)
    wait_until(lambda: len(helpers_of(worker)) == 1)  # It loads for seconds, and looks at nothing.
    start_desk(studio)
    wait_until(lambda: len(helpers_of(worker)) == 2)
    helpers = helpers_of(worker)
    worker.kill()
    wait_until(lambda: not any(map(is_there, helpers)))
    wait_until(lambda: health(studio)[0] == httpx2.codes.OK)

    assert worker_of(studio) != worker


def test_new_studio_can_start_and_train_after_kill(studio: Studio) -> None:
    assert studio.process is not None
    studio.process.send_signal(signal.SIGKILL)
    studio.wait()
    studio.port = free_port()
    studio.start()
    number = submit_run(studio, max_steps=2)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")

    assert health(studio)[1]["status"] == "ok"
