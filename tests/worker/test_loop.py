"""The worker with real processes that play a part instead of training."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.processes import unix_sockets
from studio.protocols import inference_service
from studio.protocols.run_dir import DatasetFacts, JobSpec, RunDir
from studio.services.metrics import metrics
from studio.services.queue import queue
from studio.services.runs import artifacts, attempts, run_commands, runs
from studio.settings import Settings
from studio.worker.launchers.protocol import Launcher
from studio.worker.loop import WorkerLoop
from studio.worker.processes import process
from studio.worker.processes.launcher import LocalLauncher
from tests.support import waiting
from tests.support.factories import make_run

pytestmark = pytest.mark.smoke

FAKE = str(Path(__file__).parents[1] / "fakes" / "runner.py")
PATIENCE_SECONDS = 30

Start = Callable[[str], WorkerLoop]


@pytest.fixture
def start(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make worker loops whose runs play a part; whatever they left running is killed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    launchers: list[LocalLauncher] = []

    def begin(part: str) -> WorkerLoop:
        launchers.append(LocalLauncher(command=(sys.executable, FAKE, part)))
        loop = WorkerLoop(engine, settings, launchers[-1])
        loop.adopt(alone=True)
        return loop

    yield begin
    for launcher in launchers:
        for handle in launcher._children:
            launcher.kill(handle)
            gone(launcher, handle)


def gone(launcher: Launcher, handle: str) -> None:
    """Wait until a process has ended."""
    waiting.wait_until(lambda: launcher.poll(handle) is not None)


def until(loop: WorkerLoop, run_id: int, is_so: Callable[[Run], bool]) -> Run:
    """Let the worker tick until something is so of a run."""
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        loop.tick()
        with read_session(loop.engine) as db:
            run = runs.get(db, run_id)
        if is_so(run):
            return run
        pause.wait(0.01)
    raise AssertionError(f"Still {run.status} at step {run.step}.")


def ended(run: Run) -> bool:
    return run.status.is_final


def submit(engine: Engine, name: str = "first try") -> int:
    with unit_of_work(engine) as db:
        return make_run(db, name).id or 0


def test_run_goes_from_queue_to_success(engine: Engine, settings: Settings, start: Start) -> None:
    run = until(start("succeed"), submit(engine), ended)

    assert (run.status, run.step, run.total_steps) == (RunStatus.SUCCEEDED, 5, 5)
    assert run.metrics["eval_loss"] == 2.6
    assert [file.name for file in artifacts.list_files(settings.runs / "1" / "artifacts")] == [
        "README.md"
    ]


def test_job_file_records_dataset_facts_for_manifest(
    engine: Engine, settings: Settings, start: Start
) -> None:
    until(start("succeed"), submit(engine), ended)

    spec = JobSpec.model_validate_json((settings.runs / "1" / "job.json").read_text())
    assert (spec.attempt, spec.dataset) == (
        1,
        DatasetFacts(
            name="starter",
            sha256="0" * 64,
            rows_sha256="1" * 64,
            mapping={"shape": "messages", "roles": {"messages": ["messages"]}},
            train_rows=40,
            validation_rows=0,
        ),
    )


def test_every_metric_is_stored_once(engine: Engine, start: Start) -> None:
    run = until(start("succeed"), submit(engine), ended)

    with read_session(engine) as db:
        told = [
            (row.step, row.values["loss"]) for row in metrics.load_rows_after(db, run.id or 0, 0)
        ]
    assert told == [(1, 2.9), (2, 2.8), (3, 2.7), (4, 2.6), (5, 2.5)]


def test_second_run_stays_queued_while_one_trains(engine: Engine, start: Start) -> None:
    first, second = submit(engine, "first"), submit(engine, "second")
    loop = start("wait")
    until(loop, first, lambda run: run.step == 1)

    with read_session(engine) as db:
        assert [run.id for run in runs.list_live(db)] == [first]
        assert [run.id for run in queue.list_waiting(db)] == [second]


def test_queued_run_takes_slot_from_inference_model(
    engine: Engine, settings: Settings, start: Start
) -> None:
    loop = start("train")
    loop.inference.service.module = "tests.fakes.inference_service"
    loop._tick_inference()
    unix_sockets.connect(inference_service.socket_path(settings.home), timeout=5).close()
    loop._tick_inference()
    assert loop.inference.slots == 1
    number = submit(engine)
    loop.tick()
    with read_session(engine) as db:
        assert runs.get(db, number).status is RunStatus.QUEUED

    loop._tick_inference()
    waiting.wait_until(lambda: loop.inference.slots == 0)

    assert until(loop, number, ended).status is RunStatus.SUCCEEDED
    loop.inference.close()


def test_trainer_failure_message_is_kept(engine: Engine, start: Start) -> None:
    run = until(start("fail"), submit(engine), ended)

    assert (run.status, run.error_code, run.error_message) == (
        RunStatus.FAILED,
        "out_of_memory",
        "It did not fit.",
    )


@pytest.mark.parametrize(
    ("part", "code", "message"),
    [
        (
            "die",
            "killed",
            (
                "The training process was killed from outside the studio (SIGKILL). "
                "It was attempted 3 times."
            ),
        ),
        (
            "exit",
            "crashed",
            ("The training process exited with code 3; its last output was: loading the model."),
        ),
    ],
)
def test_dead_training_process_fails_run(
    engine: Engine, start: Start, part: str, code: str, message: str
) -> None:
    run = until(start(part), submit(engine), ended)

    assert (run.status, run.error_code, run.error_message) == (RunStatus.FAILED, code, message)


def test_cancelled_run_stops(engine: Engine, start: Start) -> None:
    run_id, loop = submit(engine), start("wait")
    until(loop, run_id, lambda run: run.step == 1)
    with unit_of_work(engine) as db:
        run_commands.cancel(db, run_id)

    run = until(loop, run_id, lambda run: ended(run) and not loop.monitored)
    assert run.status is RunStatus.CANCELLED


def test_unresponsive_cancelled_run_is_killed(
    engine: Engine, settings: Settings, start: Start
) -> None:
    run_id = submit(engine)
    loop = start("wait")
    loop.settings = settings.model_copy(update={"stop_grace_seconds": 0.0})
    run = until(loop, run_id, lambda run: run.step == 1)
    os.kill(int(run.handle.split("@")[0]), signal.SIGSTOP)
    with unit_of_work(engine) as db:
        run_commands.cancel(db, run_id)

    assert until(loop, run_id, ended).status is RunStatus.CANCELLED


def test_second_worker_adopts_running_run(engine: Engine, settings: Settings, start: Start) -> None:
    run_id, first = submit(engine), start("wait")
    until(first, run_id, lambda run: run.step == 1)
    left = first.monitored.pop(run_id).handle
    second = start("wait")
    for step in range(1, 6):
        (settings.runs / str(run_id) / f"go-{step}").touch()
    gone(first.launcher, left)

    run = until(second, run_id, ended)
    with read_session(engine) as db:
        steps = [row.step for row in metrics.load_rows_after(db, run_id, 0)]
    assert (run.status, run.attempt, steps) == (RunStatus.SUCCEEDED, 1, [1, 2, 3, 4, 5])


def test_claimed_run_without_process_is_requeued(engine: Engine, start: Start) -> None:
    run_id = submit(engine)
    with unit_of_work(engine) as db:
        queue.claim(db, "a worker that died", slots=1)
    start("wait")

    with read_session(engine) as db:
        assert runs.get(db, run_id).status is RunStatus.QUEUED


def test_run_that_ended_without_worker_is_settled_later(
    engine: Engine, settings: Settings, start: Start
) -> None:
    run_id, first = submit(engine), start("wait")
    until(first, run_id, lambda run: run.step == 1)
    left = first.monitored.pop(run_id).handle
    for step in range(1, 6):
        (settings.runs / str(run_id) / f"go-{step}").touch()
    gone(first.launcher, left)
    run = until(start("wait"), run_id, ended)

    assert run.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("ask", "word", "status"),
    [
        (run_commands.pause, "pause", RunStatus.PAUSED),
        (run_commands.stop_and_keep, "keep", RunStatus.SUCCEEDED),
        (run_commands.cancel, "cancel", RunStatus.CANCELLED),
    ],
)
def test_run_commands_reach_training_process(
    engine: Engine, start: Start, ask: Callable[..., Run], word: str, status: RunStatus
) -> None:
    run_id, loop = submit(engine), start("wait")
    until(loop, run_id, lambda run: run.step == 1)
    with unit_of_work(engine) as db:
        ask(db, run_id)

    run = until(loop, run_id, lambda _run: not loop.monitored)
    folder = RunDir(loop.settings.runs / str(run_id))
    assert (run.status, folder.command.read_text(encoding="ascii")) == (status, word)


def test_paused_run_can_be_resumed(engine: Engine, settings: Settings, start: Start) -> None:
    run_id, loop = submit(engine), start("wait")
    until(loop, run_id, lambda run: run.step == 1)
    with unit_of_work(engine) as db:
        run_commands.pause(db, run_id)
    until(loop, run_id, lambda run: run.status is RunStatus.PAUSED and not loop.monitored)
    for step in range(1, 6):
        (settings.runs / str(run_id) / f"go-{step}").touch()
    with unit_of_work(engine) as db:
        run_commands.resume(db, run_id)

    run = until(loop, run_id, ended)
    with read_session(engine) as db:
        steps = [row.step for row in metrics.load_rows_after(db, run_id, 0)]
    assert (run.status, run.attempt, steps) == (RunStatus.SUCCEEDED, 2, [1, 2, 3, 4, 5])


def test_resumed_run_waits_for_old_process_to_exit(engine: Engine, start: Start) -> None:
    run_id, loop = submit(engine), start("linger")
    until(loop, run_id, lambda run: run.step == 1)
    with unit_of_work(engine) as db:
        run_commands.pause(db, run_id)
    until(loop, run_id, lambda run: run.status is RunStatus.PAUSED)
    with unit_of_work(engine) as db:
        run_commands.resume(db, run_id)
    until(loop, run_id, lambda run: run.attempt == 2)

    with read_session(engine) as db:
        assert [one.outcome for one in attempts.list_attempts(db, run_id)] == ["paused", ""]


def test_draining_worker_requeues_its_runs(
    engine: Engine, settings: Settings, start: Start
) -> None:
    run_id, loop = submit(engine), start("wait")
    loop.settings = settings.model_copy(update={"on_stop": "drain"})
    until(loop, run_id, lambda run: run.step == 1)
    told = threading.Event()
    told.set()
    loop.run(told)

    with read_session(engine) as db:
        run = runs.get(db, run_id)
    assert (run.status, run.resumes, loop.monitored) == (RunStatus.QUEUED, True, {})


def test_hung_run_is_stopped_and_retried_once(
    engine: Engine, settings: Settings, start: Start
) -> None:
    run_id, loop = submit(engine), start("wait")
    loop.settings = settings.model_copy(update={"hang_seconds": 0.2})

    run = until(loop, run_id, ended)
    assert (run.status, run.attempt, run.error_code, run.error_message) == (
        RunStatus.FAILED,
        2,
        "hang",
        (
            "The training process reported nothing for too long and was stopped. "
            "It was attempted 2 times."
        ),
    )


def test_run_is_requeued_after_machine_restart(engine: Engine, start: Start) -> None:
    run_id, first = submit(engine), start("wait")
    until(first, run_id, lambda run: run.step == 1)
    before = first.monitored.pop(run_id).handle
    first.launcher.kill(before)
    gone(first.launcher, before)
    with unit_of_work(engine) as db:
        runs.get(db, run_id).handle = before.rpartition("@")[0] + "@another boot"
    second = start("wait")
    second.tick(takes=False)

    with read_session(engine) as db:
        run = runs.get(db, run_id)
    assert (run.status, run.resumes) == (RunStatus.QUEUED, True)


def test_unrecorded_training_process_is_found_and_adopted(engine: Engine, start: Start) -> None:
    """The worker was killed between starting it and saying so."""
    run_id, first = submit(engine), start("wait")
    until(first, run_id, lambda run: run.step == 1)
    left = first.monitored.pop(run_id).handle
    with unit_of_work(engine) as db:
        run = runs.get(db, run_id)
        run.handle, run.status = "", RunStatus.STARTING
    second = start("wait")

    assert second.monitored[run_id].handle == left


def test_run_that_cannot_be_prepared_fails(
    engine: Engine, settings: Settings, start: Start
) -> None:
    run_id = submit(engine)
    (settings.models / "starter" / "config.json").unlink()
    with unit_of_work(engine) as db:
        runs.get(db, run_id).dataset_version_id = None
    run = until(start("succeed"), run_id, ended)

    assert (run.status, run.error_code) == (RunStatus.FAILED, "invalid")


def test_reused_pid_is_not_mistaken_for_run() -> None:
    assert process.find_process(os.getpid(), 1.0) is None
