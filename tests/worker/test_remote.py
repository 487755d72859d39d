"""A worker on another machine: a home of its own, and a studio that it reaches over HTTP alone."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import uvicorn
from sqlalchemy import Engine

from studio.client.errors import ApiError
from studio.db.accounts import Scope
from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import QuarantinedGpu, Run
from studio.services.accounts import api_tokens
from studio.services.metrics import metrics
from studio.services.queue import queue
from studio.services.runs import attempts, run_commands, runs
from studio.settings import Settings
from studio.web.app import create_app
from studio.worker.loop import WorkerLoop
from studio.worker.processes import process
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.remote import remote_attempt
from studio.worker.remote.connection import StudioConnection
from studio.worker.remote.remote_loop import RemoteLoop, worker_name
from tests.support import live_studio
from tests.support.bad_network import BadNetwork
from tests.support.factories import MACHINES, make_run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults]

FAKE = str(Path(__file__).parents[1] / "fakes" / "remote_runner.py")
STEPS = [1, 2, 3, 4, 5, 6]
MINUTES_AHEAD = 5
PATIENCE_SECONDS = 120


@dataclass(slots=True)
class Elsewhere:
    """Another machine: a home, and a worker in a thread."""

    settings: Settings
    url: str
    token: str
    part: str
    clock: timedelta = timedelta()
    loop: RemoteLoop = field(init=False)
    error: BaseException | None = None
    _launchers: list[LocalLauncher] = field(default_factory=list)
    """Kept, because each is the parent of processes."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        launcher = LocalLauncher(command=(sys.executable, FAKE, self.part), wanted_slots=1)
        self._launchers.append(launcher)
        connection = StudioConnection.open(worker_name(self.settings), self.url, self.token)
        connection.clock = lambda: datetime.now(UTC) + self.clock
        self.loop = RemoteLoop(self.settings, connection, launcher)
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.loop.run(self._stop)
        except ApiError as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run_dir(self, number: int = 1) -> Path:
        return remote_attempt.run_dir(self.settings, number).root

    def process(self, number: int = 1) -> process.Process | None:
        return process.find_training_process(remote_attempt.run_dir(self.settings, number))

    def clean_up(self) -> None:
        self.stop()
        for launcher in self._launchers:
            for handle in [*launcher._children]:
                kill(launcher, handle)


def kill(launcher: LocalLauncher, handle: str) -> None:
    launcher.kill(handle)
    wait_until(lambda: launcher.poll(handle) is not None)


@dataclass(slots=True)
class Server:
    """The web process of a studio, in a thread; it can go away and come back."""

    engine: Engine
    settings: Settings
    port: int = field(default_factory=live_studio.free_port)
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        app = create_app(self.engine, self.settings)
        config = uvicorn.Config(
            app, "127.0.0.1", self.port, log_config=None, timeout_graceful_shutdown=2
        )
        server = self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: server.started)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None


@dataclass(slots=True)
class World:
    server: Server
    token: str
    signals: Path
    stack: ExitStack
    tmp_path: Path

    @property
    def engine(self) -> Engine:
        return self.server.engine

    def elsewhere(self, part: str = "succeed", *, url: str = "", **options: Any) -> Elsewhere:  # noqa: ANN401 -- its fields
        clock = options.pop("clock", timedelta())
        name = options.pop("name", "elsewhere")
        (self.tmp_path / name).mkdir(exist_ok=True)
        settings = Settings(home=self.tmp_path / name, slots=1, **options)
        other = Elsewhere(settings, url or self.server.url, self.token, part, clock)
        self.stack.callback(other.clean_up)
        other.start()
        return other

    def network(self, share: float, seed: int = 1) -> BadNetwork:
        return self.stack.enter_context(BadNetwork(self.server.port, share, seed).running())

    def submit(self, name: str = "quick") -> int:
        with unit_of_work(self.engine) as db:
            return make_run(db, name).id or 0

    def run(self, number: int = 1) -> Run:
        with read_session(self.engine) as db:
            return runs.get(db, number)

    def wait_for(self, status: RunStatus, number: int = 1, *, step: int = 0) -> Run:
        def is_so() -> bool:
            run = self.run(number)
            return run.status is status and run.step >= step

        wait_until(is_so, seconds=PATIENCE_SECONDS)
        return self.run(number)

    def steps(self, number: int = 1) -> list[int]:
        """Return the steps whose metrics the studio has, each as often as it has them."""
        with read_session(self.engine) as db:
            return [row.step for row in metrics.load_rows_after(db, number, 0)]

    def go(self, *steps: int) -> None:
        for step in steps:
            (self.signals / f"go-{step}").touch()

    def files(self, number: int = 1) -> dict[str, bytes]:
        root = self.server.settings.runs / str(number)
        found = [*root.glob("artifacts/*"), *root.glob("checkpoints/*/*")]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


ALL_FILES = {
    "artifacts/README.md": b"# A card\n",
    "artifacts/attempt": b"1",
    "artifacts/weights.bin": b"w" * 2_500_000,
    **{f"checkpoints/checkpoint-{step}/weights": bytes([step]) * 300_000 for step in (2, 4, 6)},
}


@pytest.fixture
def world(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    signals = tmp_path / "signals"
    signals.mkdir()
    monkeypatch.setenv("FAKE_SIGNALS", str(signals))
    server = Server(engine, settings.model_copy(update={"sign_in": "link"}))
    with unit_of_work(engine) as db:
        request = api_tokens.TokenRequest("worker", Scope.ADMIN, 1)
        _row, token = api_tokens.create(db, request, None)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        yield World(server, token, signals, stack, tmp_path)


def test_run_trains_elsewhere_and_its_result_is_here(world: World) -> None:
    other = world.elsewhere()
    number = world.submit()

    run = world.wait_for(RunStatus.SUCCEEDED, number)

    assert (run.step, run.metrics["loss"], run.checkpoint_step) == (6, 2.4, 6)
    assert world.steps(number) == STEPS
    assert world.files() == ALL_FILES
    wait_until(lambda: not other.run_dir().exists(), seconds=PATIENCE_SECONDS)
    assert (world.server.settings.runs / "1" / "log.txt").read_text().endswith("step 6\n")


def test_nothing_is_lost_or_doubled_by_a_bad_network_and_another_clock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CLOCK", str(MINUTES_AHEAD * 60))
    network = world.network(share=0.4)
    world.elsewhere(url=network.url, clock=timedelta(minutes=MINUTES_AHEAD))
    before = datetime.now(UTC)
    numbers = [world.submit(), world.submit("again")]

    told = [world.wait_for(RunStatus.SUCCEEDED, number) for number in numbers]

    assert [world.steps(number) for number in numbers] == [STEPS] * 2
    assert [world.files(number) for number in numbers] == [ALL_FILES] * 2
    assert [run.attempt for run in told] == [1, 1]
    for run in told:
        assert run.started_at is not None
        started = run.started_at
        assert before - timedelta(seconds=5) < started < datetime.now(UTC) + timedelta(seconds=5)
    assert sum(network.counts.values()) - network.counts["forwarded"] > 10, network.counts


def test_training_goes_on_while_the_studio_is_away(world: World) -> None:
    other = world.elsewhere("wait")
    number = world.submit()
    world.go(1, 2)
    world.wait_for(RunStatus.RUNNING, number, step=2)
    trained = other.run_dir() / "log.txt"

    world.server.stop()
    world.go(3, 4, 5, 6)
    wait_until(lambda: "step 6" in trained.read_text())
    world.server.start()
    run = world.wait_for(RunStatus.SUCCEEDED, number)

    assert (run.attempt, world.steps(number)) == (1, STEPS)
    assert world.files() == ALL_FILES


def test_cancelled_run_is_stopped_elsewhere(world: World) -> None:
    other = world.elsewhere("wait")
    number = world.submit()
    world.go(1)
    world.wait_for(RunStatus.RUNNING, number, step=1)

    with unit_of_work(world.engine) as db:
        run_commands.cancel(db, number)

    run = world.wait_for(RunStatus.CANCELLED, number)
    wait_until(lambda: not other.run_dir().exists())
    assert (run.step, other.process()) == (1, None)


def test_paused_run_resumes_from_its_checkpoint_on_another_machine(world: World) -> None:
    first = world.elsewhere("wait")
    number = world.submit()
    world.go(1, 2, 3)
    world.wait_for(RunStatus.RUNNING, number, step=3)
    with unit_of_work(world.engine) as db:
        run_commands.pause(db, number)
    world.wait_for(RunStatus.PAUSED, number)
    wait_until(lambda: not first.run_dir().exists(), seconds=PATIENCE_SECONDS)
    first.stop()
    world.elsewhere("succeed", name="third")

    with unit_of_work(world.engine) as db:
        run_commands.resume(db, number)
    run = world.wait_for(RunStatus.SUCCEEDED, number)

    assert (run.attempt, world.steps(number)) == (2, STEPS)
    assert run.resumed_step == 3


def test_silent_workers_run_is_taken_over_and_it_kills_its_own(world: World) -> None:
    network = world.network(share=0.0)
    silent = world.elsewhere("wait", url=network.url)
    number = world.submit()
    world.go(1, 2)
    world.wait_for(RunStatus.RUNNING, number, step=2)
    running = silent.process()
    assert running is not None
    network.is_cut = True
    wait_until(lambda: silent.loop._away_since is not None)

    with unit_of_work(world.engine) as db:
        run = runs.get(db, number)
        run.lease_until = datetime.now(UTC) - timedelta(seconds=1)
    WorkerLoop(world.engine, world.server.settings, LocalLauncher()).adopt()
    world.elsewhere("succeed", name="third")
    told = world.wait_for(RunStatus.SUCCEEDED, number)
    assert psutil.pid_exists(running.pid)
    world.go(3, 4)
    wait_until((silent.run_dir() / "checkpoints" / "checkpoint-4" / "weights").exists)
    earlier = len(network.answers)
    network.is_cut = False

    wait_until(lambda: silent.process() is None and not silent.run_dir().exists())
    refused = [one for one in network.answers[earlier:] if "/attempts/" in one[0]]
    assert {status for _path, status in refused} <= {409}
    assert len(refused) <= 1
    assert (told.attempt, world.steps(number)) == (2, STEPS)
    assert world.run(number).status is RunStatus.SUCCEEDED
    assert world.files() == ALL_FILES | {"artifacts/attempt": b"2"}


def test_fenced_attempt_sends_one_batch_and_its_files_stay_away(world: World) -> None:
    network = world.network(share=0.0)
    other = world.elsewhere("wait", url=network.url)
    number = world.submit()
    world.go(1)
    world.wait_for(RunStatus.RUNNING, number, step=1)
    network.is_cut = True
    world.go(2)
    wait_until((other.run_dir() / "checkpoints" / "checkpoint-2" / "weights").exists)

    with unit_of_work(world.engine) as db:
        run = runs.get(db, number)
        attempts.close_silent(db, run)
        queue.hold(db, number, is_held=True)
    earlier = len(network.answers)
    other.loop._beat_at = float("inf")  # Only the courier hears of it.
    network.is_cut = False
    wait_until(lambda: not other.run_dir().exists())

    refused = [status for path, status in network.answers[earlier:] if "/attempts/" in path]
    assert refused == [409]
    assert world.files(number) == {}


def test_each_file_is_sent_once_though_the_worker_restarts(world: World) -> None:
    network = world.network(share=0.0)
    other = world.elsewhere("wait", url=network.url)
    number = world.submit()
    world.go(1, 2, 3)
    world.wait_for(RunStatus.RUNNING, number, step=3)
    other.stop()
    other.start()
    world.go(4, 5, 6)
    world.wait_for(RunStatus.SUCCEEDED, number)

    assert world.files(number) == ALL_FILES
    uploads = Counter(path for path, _status in network.answers if "/uploads/" in path)
    assert sorted(uploads.values()) == [1, 1, 1, 1, 1, 3]  # 1 MiB a call


def test_gpu_in_quarantine_gets_no_run(world: World) -> None:
    machine = MACHINES["t4"]
    with unit_of_work(world.engine) as db:
        db.add(QuarantinedGpu(gpu=machine.gpus[0].cuda_name, reason="runs failed on it"))
    connection = StudioConnection.open("remote-box-1", world.server.url, world.token)
    loop = RemoteLoop(world.server.settings, connection, LocalLauncher(), hardware=machine)

    loop.tick()
    loop.close()

    pools = loop.gpus.pools([], 1)
    assert pools is not None
    assert list(pools.free) == []


def test_restarted_worker_adopts_its_run(world: World) -> None:
    other = world.elsewhere("wait")
    number = world.submit()
    world.go(1, 2)
    world.wait_for(RunStatus.RUNNING, number, step=2)
    other.stop()
    running = other.process()
    assert running is not None

    other.start()
    world.go(3, 4, 5, 6)
    run = world.wait_for(RunStatus.SUCCEEDED, number)

    assert (run.attempt, world.steps(number)) == (1, STEPS)


def test_draining_worker_returns_its_run_to_the_queue(world: World) -> None:
    other = world.elsewhere("wait", on_stop="drain")
    number = world.submit()
    world.go(1)
    world.wait_for(RunStatus.RUNNING, number, step=1)

    other.stop()

    run = world.run(number)
    assert (run.status, run.checkpoint_step, other.process()) == (RunStatus.QUEUED, 1, None)


def test_wrong_token_ends_the_worker_with_the_reason(world: World) -> None:
    other = Elsewhere(
        Settings(home=world.tmp_path / "elsewhere"), world.server.url, "wrong", "succeed"
    )
    other.settings.home.mkdir()
    other.start()

    wait_until(lambda: other.error is not None)

    assert isinstance(other.error, ApiError)
    assert other.error.status == httpx2.codes.UNAUTHORIZED
