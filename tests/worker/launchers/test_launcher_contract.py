"""What every launcher does: this machine's, and those of a cluster; Slurm and Ray for real."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from studio.errors import ConflictError
from studio.protocols.run_dir import RunDir
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.worker.launchers.jobs.launcher import JobLauncher, Timing
from studio.worker.launchers.protocol import Launcher
from studio.worker.processes.launcher import LaunchSpec, LocalLauncher
from tests.fakes.engine import PlayedEngine
from tests.support import ray_cluster, slurm_cluster
from tests.support.waiting import wait_until

FAKE = str(Path(__file__).parents[2] / "fakes" / "runner.py")
QUICK = Timing(poll=0.1, longest_poll=0.2, silence=20, settle=1)


class Cluster(Protocol):
    """Somewhere attempts can train."""

    def launcher(self, command: Sequence[str], timing: Timing) -> Launcher: ...

    def go_away(self) -> None: ...

    def come_back(self) -> None: ...


@dataclass(slots=True)
class ThisMachine:
    def launcher(self, command: Sequence[str], timing: Timing) -> Launcher:  # noqa: ARG002 -- needs no time
        return LocalLauncher(command=(sys.executable, *command))

    def go_away(self) -> None:
        """Do nothing: it is always there."""

    def come_back(self) -> None:
        """Do nothing: it has always been there."""


@dataclass(slots=True)
class Played:
    engine: PlayedEngine

    def launcher(self, command: Sequence[str], timing: Timing) -> Launcher:
        return JobLauncher(self.engine, "test", sys.executable, command, timing=timing)

    def go_away(self) -> None:
        self.engine.is_away = True

    def come_back(self) -> None:
        self.engine.is_away = False


@contextmanager
def _play() -> Iterator[Cluster]:
    engine = PlayedEngine()
    yield Played(engine)
    engine.end()


@contextmanager
def _local() -> Iterator[Cluster]:
    yield ThisMachine()


@contextmanager
def _slurm() -> Iterator[Cluster]:
    if why := slurm_cluster.missing_reason():
        pytest.skip(why)
    with slurm_cluster.run_cluster() as cluster:
        yield cluster


@contextmanager
def _ray() -> Iterator[Cluster]:
    if why := ray_cluster.missing_reason():
        pytest.skip(why)
    with ray_cluster.run_cluster() as cluster:
        yield cluster


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(_local, id="local"),
        pytest.param(_play, id="played"),
        pytest.param(_slurm, id="slurm", marks=pytest.mark.slow),
        pytest.param(_ray, id="ray", marks=pytest.mark.slow),
    ],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with request.param() as made:
        yield made


@dataclass(slots=True)
class Attempts:
    """Starts attempts of a fake runner that plays a part, and ends those that are left."""

    cluster: Cluster
    home: Path
    number: int
    made: list[tuple[Launcher, str]]

    def launcher(self, part: str = "wait", timing: Timing = QUICK) -> Launcher:
        launcher = self.cluster.launcher((FAKE, part), timing)
        launcher.open()
        return launcher

    def spec(self, attempt: int = 1) -> LaunchSpec:
        folder = RunDir(self.home / str(self.number))
        folder.root.mkdir(exist_ok=True)
        folder.job.write_text(json.dumps({"attempt": attempt}))
        return LaunchSpec(run_id=self.number, attempt=attempt, folder=folder)

    def start(self, part: str = "wait") -> tuple[Launcher, str, RunDir]:
        launcher, spec = self.launcher(part), self.spec()
        handle = launcher.submit(spec)
        self.made.append((launcher, handle))
        return launcher, handle, spec.folder

    def end(self) -> None:
        for launcher, handle in self.made:
            launcher.kill(handle)
            wait_until(partial(has_ended, launcher, handle))
            launcher.close()


def has_ended(launcher: Launcher, handle: str) -> bool:
    return launcher.poll(handle) is not None


_numbers = iter(range(1, 10_000))


@pytest.fixture
def attempts(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Attempts]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    made = Attempts(cluster, tmp_path, next(_numbers), [])
    yield made
    made.end()


def ended(launcher: Launcher, handle: str) -> ProcessExit:
    wait_until(partial(has_ended, launcher, handle))
    end = launcher.poll(handle)
    assert end is not None
    return end


def kinds(folder: RunDir) -> list[str]:
    return [event.kind for event in folder.events.read(0)[0]] if folder.events.path.exists() else []


def wait_for(folder: RunDir, kind: str) -> None:
    wait_until(lambda: kind in kinds(folder))


def trainer(folder: RunDir) -> psutil.Process:
    """Return the process that trains; the last, while another takes its place."""
    while True:
        with suppress(psutil.NoSuchProcess, ValueError, IndexError):
            return psutil.Process(int(folder.lock.read_text().split()[0]))


def is_alive(one: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    return False


def test_attempt_runs_to_its_end(attempts: Attempts) -> None:
    launcher, handle, folder = attempts.start("train")

    assert ended(launcher, handle).exit_code == 0
    assert launcher.poll(handle) is not None
    assert (kinds(folder)[0], kinds(folder)[-1]) == ("started", "finished")
    assert "step 5" in folder.log.read_text()


def test_exit_code_is_reported(attempts: Attempts) -> None:
    launcher, handle, _folder = attempts.start("exit")

    assert ended(launcher, handle).exit_code == 3


def test_running_attempt_has_not_ended(attempts: Attempts) -> None:
    launcher, handle, folder = attempts.start()
    wait_for(folder, "progressed")

    assert launcher.poll(handle) is None
    assert launcher.waits_for(handle) is None


def test_kill_from_outside_is_reported(attempts: Attempts) -> None:
    launcher, handle, folder = attempts.start()
    wait_for(folder, "progressed")
    trainer(folder).kill()

    assert ended(launcher, handle).exit_code == -signal.SIGKILL


def test_stop_lets_the_attempt_end_by_itself(attempts: Attempts) -> None:
    launcher, handle, folder = attempts.start()
    wait_for(folder, "progressed")
    folder.command.write_text("keep")
    launcher.stop(handle)
    launcher.stop(handle)

    assert ended(launcher, handle).exit_code == 0
    assert kinds(folder)[-1] == "stopped"


def test_kill_ends_everything(attempts: Attempts) -> None:
    launcher, handle, folder = attempts.start()
    wait_for(folder, "progressed")
    process = trainer(folder)
    launcher.kill(handle)

    assert ended(launcher, handle).exit_code in {-signal.SIGKILL, None}
    wait_until(lambda: not is_alive(process))
    assert kinds(folder)[-1] == "progressed"


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "not recorded"])
def test_another_worker_adopts(attempts: Attempts, *, is_recorded: bool) -> None:
    first, handle, folder = attempts.start()
    wait_for(folder, "progressed")
    first.close()
    another = attempts.launcher()
    adopted = another.adopt(attempts.spec(), handle if is_recorded else "")
    attempts.made.append((another, adopted))

    assert another.poll(adopted) is None
    folder.command.write_text("pause")
    another.stop(adopted)
    ended(another, adopted)
    assert kinds(folder).count("started") == 1
    assert kinds(folder)[-1] == "paused"


def test_what_was_not_submitted_is_not_adopted(attempts: Attempts) -> None:
    launcher = attempts.launcher()
    try:
        assert launcher.adopt(attempts.spec(), "") == ""
    finally:
        launcher.close()


def test_second_submit_never_makes_two(attempts: Attempts) -> None:
    launcher, _handle, folder = attempts.start()
    wait_for(folder, "progressed")
    first = trainer(folder)
    with suppress(ConflictError):
        attempts.made.append((launcher, launcher.submit(attempts.spec())))
    # This machine's launcher has the second take the place of the first, the others refuse it.
    wait_until(lambda: len([one for one in {first, trainer(folder)} if is_alive(one)]) == 1)
    assert len([one for one in {first, trainer(folder)} if is_alive(one)]) == 1


def test_attempts_outlast_an_engine_that_is_away(attempts: Attempts) -> None:
    launcher, handle, folder = attempts.start()
    wait_for(folder, "progressed")
    attempts.cluster.go_away()
    try:
        if isinstance(launcher, JobLauncher):
            wait_until(lambda: launcher.away is not None)
        assert launcher.poll(handle) is None
        (folder.root / "go-1").touch()
        wait_until(lambda: kinds(folder).count("progressed") == 2)
        assert launcher.poll(handle) is None
        folder.command.write_text("keep")
        launcher.stop(handle)
        assert ended(launcher, handle).exit_code == 0
    finally:
        attempts.cluster.come_back()


def test_submitted_while_the_engine_is_away(attempts: Attempts) -> None:
    attempts.cluster.go_away()
    try:
        launcher, handle, folder = attempts.start("train")
        if isinstance(launcher, JobLauncher):
            wait_until(lambda: launcher.away is not None)
            assert launcher.poll(handle) is None
            assert "answer" in (launcher.waits_for(handle) or "")
    finally:
        attempts.cluster.come_back()

    assert ended(launcher, handle).exit_code == 0
    assert kinds(folder).count("started") == 1


def test_slots_are_the_operators_choice(attempts: Attempts) -> None:
    launcher = attempts.launcher()
    launcher.wanted_slots = 7  # type: ignore[attr-defined] # all have it
    launcher.close()

    assert launcher.slots() == 7
