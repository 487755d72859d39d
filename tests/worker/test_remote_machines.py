"""A studio and its workers on machines of their own: network namespaces, homes and clocks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.accounts import Role, Scope
from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.methods import RECIPE_ADAPTER
from studio.services import experiments
from studio.services.accounts import accounts, api_tokens
from studio.services.metrics import metrics
from studio.services.operations import home
from studio.services.runs import attempts, runs
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes import process
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.remote import remote_attempt
from tests.support import bad_link, shifted_clock
from tests.support.bad_link import BadLink, Faults, Machine
from tests.support.factories import make_run
from tests.support.live_studio import QUICK, ROOT, Studio
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults]

FAKE = str(ROOT / "tests" / "fakes" / "remote_worker.py")
BAD = Faults(loss=0.03, duplicates=0.05, delay_seconds=0.03)
AHEAD_SECONDS = 300
PORT = 8000
STEPS = [1, 2, 3, 4, 5, 6]


@dataclass(slots=True)
class Program:
    """A process on a machine; it may be killed and started again."""

    machine: Machine
    words: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.machine.command(*self.words),
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class Elsewhere:
    """A worker on a machine of its own."""

    program: Program
    settings: Settings
    kept: Path
    """Another link to the events of its run, which its worker deletes at the end."""

    @property
    def folder(self) -> Path:
        return remote_attempt.run_dir(self.settings, 1).root

    def process(self) -> process.Process | None:
        return process.find_training_process(remote_attempt.run_dir(self.settings, 1))

    def keep_events(self) -> None:
        wait_until(self._link_events)

    def _link_events(self) -> bool:
        with suppress(FileNotFoundError):
            os.link(self.folder / "events.jsonl", self.kept)
        return self.kept.exists()

    def close(self) -> None:
        self.program.kill()
        if left := self.process():
            left.kill()


@dataclass(slots=True)
class World:
    link: BadLink
    machines: list[Machine]
    folder: Path
    engine: Engine
    settings: Settings
    stack: ExitStack
    token: str = ""
    studio: Program = field(init=False)

    def __post_init__(self) -> None:
        with unit_of_work(self.engine) as db:
            request = api_tokens.TokenRequest("worker", Scope.ADMIN, 1)
            admin = accounts.add(db, "admin", Role.ADMINISTRATOR)
            _row, self.token = api_tokens.create(db, request, admin.id)
        (self.folder / "signals").mkdir()
        machine = self.machines[0]
        serve = (sys.executable, "-m", "studio", "serve", "--no-worker", "--host", machine.address)
        known = {
            "STUDIO_HOME": str(self.settings.home),
            "STUDIO_ALLOWED_HOSTS": machine.address,
            "STUDIO_SIGN_IN": "accounts",
        }
        log = self.folder / "studio.log"
        self.studio = Program(machine, (*serve, "--port", str(PORT)), known, log)
        self.stack.callback(self.studio.kill)
        self.studio.start()

    def elsewhere(self, number: int, *, ahead: int = 0, real: bool = False) -> Elsewhere:
        machine, url = self.machines[number], f"http://{self.machines[0].address}:{PORT}"
        own = Settings(home=self.folder / f"elsewhere-{number}")
        words = (sys.executable, "-m", "studio", "worker", "--studio", url)
        played = (sys.executable, FAKE, url, "wait")
        known = {
            "STUDIO_HOME": str(own.home),
            "STUDIO_TOKEN": self.token,
            "FAKE_SIGNALS": str(self.folder / "signals"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        if ahead:
            known |= shifted_clock.environment(self.folder, ahead)
        log = self.folder / f"worker-{number}.log"
        program = Program(machine, words if real else played, known, log)
        other = Elsewhere(program, own, self.folder / f"events-{number}.jsonl")
        self.stack.callback(other.close)
        program.start()
        return other

    def go(self, *steps: int) -> None:
        for step in steps:
            (self.folder / "signals" / f"go-{step}").touch()

    def run(self) -> Run:
        with read_session(self.engine) as db:
            return runs.get(db, 1)

    def wait_for(self, status: RunStatus, step: int = 0) -> Run:
        wait_until(lambda: self.run().status in {status, RunStatus.FAILED}, seconds=400)
        wait_until(lambda: self.run().step >= step)
        run = self.run()
        assert run.status is status, run.error_message
        return run

    def steps(self) -> list[int]:
        with read_session(self.engine) as db:
            return [row.step for row in metrics.load_rows_after(db, 1, 0)]

    def events(self) -> bytes:
        return (self.settings.runs / "1" / "events.jsonl").read_bytes()

    def files(self) -> dict[str, bytes]:
        root = self.settings.runs / "1"
        found = [*root.glob("artifacts/*"), *root.glob("checkpoints/*/*")]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def played_files(attempt: int) -> dict[str, bytes]:
    return {
        "artifacts/README.md": b"# A card\n",
        "artifacts/attempt": str(attempt).encode(),
        "artifacts/weights.bin": b"w" * 2_500_000,
        **{f"checkpoints/checkpoint-{step}/weights": bytes([step]) * 300_000 for step in (2, 4, 6)},
    }


@pytest.fixture
def link() -> Iterator[tuple[BadLink, list[Machine]]]:
    if reason := bad_link.missing_reason() or shifted_clock.missing_reason():
        pytest.skip(reason)
    link = BadLink(BAD)
    with link.joining("studio", "first", "second") as machines:
        yield link, machines


@pytest.fixture
def world(
    link: tuple[BadLink, list[Machine]], engine: Engine, settings: Settings, tmp_path: Path
) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(*link, tmp_path, engine, settings, stack)


@pytest.mark.parametrize("ahead", [AHEAD_SECONDS, -AHEAD_SECONDS], ids=["ahead", "behind"])
def test_events_arrive_once_over_a_bad_link_with_another_clock(world: World, ahead: int) -> None:
    before = datetime.now(UTC)
    with unit_of_work(world.engine) as db:
        make_run(db)
    other = world.elsewhere(1, ahead=ahead)
    other.keep_events()
    world.go(1, 2, 3)
    world.wait_for(RunStatus.RUNNING, step=3)

    world.studio.kill()
    world.go(4)
    wait_until(lambda: b'"step":4' in other.kept.read_bytes())
    world.studio.start()
    world.wait_for(RunStatus.RUNNING, step=4)
    world.link.cut_off.add(other.program.machine.address)
    world.go(5, 6)
    wait_until(lambda: b'"kind":"finished"' in other.kept.read_bytes())
    world.link.cut_off.clear()
    run = world.wait_for(RunStatus.SUCCEEDED)

    assert world.events() == other.kept.read_bytes()
    assert (run.attempt, world.steps()) == (1, STEPS)
    assert world.files() == played_files(1)
    wait_until(lambda: not other.folder.exists())
    tolerance = timedelta(seconds=10)
    assert run.started_at is not None
    assert before - tolerance < run.started_at < datetime.now(UTC) + tolerance
    told = datetime.fromisoformat(first_time(world.events()))
    assert abs(told - run.started_at - timedelta(seconds=ahead)) < tolerance
    assert min(world.link.counts[name] for name in ("lost", "repeated", "overtaken")) > 0


def first_time(events: bytes) -> str:
    """Return when the first event was written, by the clock of its machine."""
    return events.split(b'"at":"', 1)[1].split(b'"', 1)[0].decode()


def test_run_of_a_killed_worker_resumes_on_another_machine(world: World) -> None:
    with unit_of_work(world.engine) as db:
        make_run(db)
    first = world.elsewhere(1, ahead=AHEAD_SECONDS)
    world.go(1, 2, 3)
    world.wait_for(RunStatus.RUNNING, step=3)
    first.program.kill()
    assert first.process() is not None

    with unit_of_work(world.engine) as db:
        runs.get(db, 1).lease_until = datetime.now(UTC) - timedelta(seconds=1)
    WorkerLoop(world.engine, world.settings, LocalLauncher()).adopt()
    second = world.elsewhere(2, ahead=-AHEAD_SECONDS)
    wait_until(lambda: world.run().resumed_step == 2)
    second.keep_events()
    world.go(4, 5, 6)
    world.wait_for(RunStatus.SUCCEEDED)
    wait_until((first.folder / "artifacts" / "attempt").exists)
    first.program.start()
    wait_until(lambda: not first.folder.exists() and first.process() is None)

    assert world.events() == second.kept.read_bytes()
    assert (world.steps(), world.files()) == (STEPS, played_files(2))
    with read_session(world.engine) as db:
        told = attempts.list_attempts(db, 1)
    assert [one.outcome for one in told] == ["lost", "succeeded"]
    assert len({one.worker for one in told}) == 2


def test_starter_trains_on_another_machine(
    link: tuple[BadLink, list[Machine]], starter_home: Path, tmp_path: Path
) -> None:
    settings = Settings(home=Studio.copied(starter_home, tmp_path / "home").home)
    engine = home.open_home(settings)
    with unit_of_work(engine) as db:
        recipe = RECIPE_ADAPTER.validate_python(QUICK)
        runs.submit(db, experiments.create(db, "quick", recipe))
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        world = World(*link, tmp_path, engine, settings, stack)
        other = world.elsewhere(1, ahead=AHEAD_SECONDS, real=True)
        other.keep_events()
        run = world.wait_for(RunStatus.SUCCEEDED)

        assert world.events() == other.kept.read_bytes()
        assert (run.step, run.attempt) == (30, 1)
        assert "artifacts/adapter_model.safetensors" in world.files()
        assert run.metrics["eval_loss"] > 0
