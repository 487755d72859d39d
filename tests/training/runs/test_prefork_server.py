"""Runs that a warm launcher forks, beside those that are spawned; every one trains for real."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from studio.protocols.events import MetricsLogged, Stopped
from studio.protocols.run_dir import RunDir
from studio.services.workers import workers as board
from studio.settings import Settings
from studio.worker.processes import process
from studio.worker.processes.prefork_client import PreforkClient
from studio.worker.processes.process import Process
from tests.support.waiting import wait_until
from tests.training import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreforkClient]:
    """Give a launcher to tests that leave it as it is: loading takes seconds."""
    with ready_launcher(tmp_path_factory.mktemp("shared")) as made:
        yield made


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[PreforkClient]:
    """Give a launcher to a test that does away with it."""
    with ready_launcher(tmp_path) as made:
        yield made


@contextmanager
def ready_launcher(home: Path) -> Iterator[PreforkClient]:
    settings = Settings(home=home)
    made = PreforkClient(settings)
    made.open()
    wait_until(lambda: is_ready(made))
    yield made
    made.close()
    for found in psutil.process_iter(["cmdline"]):
        if str(settings.runs) in (found.info["cmdline"] or ()):
            found.kill()
    wait_until(lambda: all(child.poll() is not None for child in made._leaving))


def is_ready(launcher: PreforkClient) -> bool:
    launcher.tick()
    return launcher.connection is not None and launcher.connection.is_ready


def launcher_of(launcher: PreforkClient) -> psutil.Process:
    assert launcher.connection is not None
    return psutil.Process(launcher.connection.child.pid)


def has_left(launcher: PreforkClient, process: psutil.Process) -> bool:
    launcher.tick()
    return not process.is_running()


def ended(made: Process) -> bool:
    return not made.is_alive


def losses(run: RunDir) -> list[float]:
    return tiny.metric_values(run, "loss")


def weights(run: RunDir) -> bytes:
    return (run.artifacts / "model.safetensors").read_bytes()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forked_run_equals_spawned_run(
    model: Path, tmp_path: Path, shared: PreforkClient, precision: str
) -> None:
    changes = {"precision": precision, "optimisation__max_steps": 6, "samples__prompts": 1}
    warm, cold = (tiny.write_run(tmp_path / name, model, **changes) for name in ("warm", "cold"))
    forked, spawned = shared.start(warm), process.start(cold)
    wait_until(lambda: ended(forked) and ended(spawned))

    assert (forked.child, forked.exit_code, spawned.exit_code) == (None, 0, 0)
    assert losses(warm) == losses(cold)
    assert len(losses(warm)) == 6
    assert weights(warm) == weights(cold)


def test_concurrent_forked_runs_do_not_affect_each_other(
    model: Path, tmp_path: Path, shared: PreforkClient
) -> None:
    alone, one, two = (tiny.write_run(tmp_path / name, model) for name in "abc")
    first = shared.start(alone)
    wait_until(lambda: ended(first))
    both = [shared.start(one), shared.start(two)]
    wait_until(lambda: all(map(ended, both)))

    assert [made.exit_code for made in both] == [0, 0]
    assert losses(one) == losses(two) == losses(alone)
    assert weights(one) == weights(two) == weights(alone)


def test_killed_launcher_does_not_stop_runs(
    model: Path, tmp_path: Path, launcher: PreforkClient
) -> None:
    going = tiny.write_run(tmp_path / "going", model, optimisation__max_steps=100_000)
    forked = launcher.start(going)
    wait_until(lambda: len(tiny.events_of(going, MetricsLogged)) > 0)
    launcher_of(launcher).kill()
    launcher_of(launcher).wait()
    seen = len(tiny.events_of(going, MetricsLogged))
    spawned = launcher.start(tiny.write_run(tmp_path / "next", model))
    wait_until(lambda: len(tiny.events_of(going, MetricsLogged)) > seen)

    assert forked.is_alive
    assert spawned.child is not None
    assert spawned.child.wait(120) == 0
    forked.terminate()
    wait_until(lambda: ended(forked))
    assert isinstance(tiny.last_event(going), Stopped)


def test_dead_launcher_is_replaced(launcher: PreforkClient) -> None:
    first = launcher_of(launcher)
    first.kill()
    first.wait()
    launcher.tick()
    assert board.read_launcher(launcher.settings).state == "broken"
    wait_until(lambda: is_ready(launcher))

    assert launcher_of(launcher) != first


def test_exit_code_is_available_after_launcher_exits(
    model: Path, tmp_path: Path, launcher: PreforkClient
) -> None:
    run = tiny.write_run(tmp_path / "run", model, optimisation__max_steps=100_000)
    forked, parent = launcher.start(run), launcher_of(launcher)
    launcher.close()
    wait_until(lambda: len(tiny.events_of(run, MetricsLogged)) > 0)
    wait_until(lambda: not parent.is_running() or parent.status() == psutil.STATUS_ZOMBIE)
    forked.kill()
    wait_until(lambda: ended(forked))

    assert forked.exit_code == -signal.SIGKILL
    assert launcher._leaving[0].wait(30) == 0


def test_forked_run_stops_with_its_process_group(
    model: Path, tmp_path: Path, shared: PreforkClient
) -> None:
    run = tiny.write_run(tmp_path / "run", model, optimisation__max_steps=100_000)
    forked = shared.start(run)
    group, session = os.getpgid(forked.pid), os.getsid(forked.pid)
    wait_until(lambda: len(tiny.events_of(run, MetricsLogged)) > 0)
    forked.terminate()
    wait_until(lambda: ended(forked))

    assert (group, session) == (forked.pid, forked.pid)
    assert (forked.exit_code, type(tiny.last_event(run))) == (0, Stopped)
    wait_until(lambda: launcher_of(shared).children() == [])  # no zombie either


def test_late_fork_does_not_train_after_fallback_to_spawn(
    model: Path, tmp_path: Path, launcher: PreforkClient
) -> None:
    run = tiny.write_run(tmp_path / "run", model)
    late = launcher_of(launcher)
    late.suspend()
    assert launcher.connection is not None
    launcher.connection.reply_seconds = 0.0
    spawned = launcher.start(run)
    late.resume()
    wait_until(lambda: ended(spawned))

    assert launcher._leaving[0].wait(30) == 0
    assert spawned.child is not None
    assert len(losses(run)) == 3


def test_forked_process_gets_fresh_environment_and_random_state(tmp_path: Path) -> None:
    code = """
import json, os, random, socket, sys
import numpy, torch
from pathlib import Path
from studio.runner import prefork_server

def fork(name):
    (ours, theirs), (go, yes) = socket.socketpair(), os.pipe()
    if os.fork():
        os.close(yes)
        return os.wait()
    os.close(yes)
    log = os.open(name, os.O_WRONLY | os.O_CREAT)
    request = prefork_server.LaunchRequest(Path(name), {"ONLY": "this"}, log, go)
    code = prefork_server.run_child(request, theirs)
    found = dict(os.environ), random.random(), numpy.random.rand(), torch.rand(1).item()
    print(json.dumps([code, *found]), flush=True)
    os._exit(0)

fresh = torch.rand(1).item()
fork(sys.argv[1]), fork(sys.argv[2])
print(fresh)
"""
    files = [tmp_path / name for name in "ab"]
    done = subprocess.run(
        [sys.executable, "-c", code, *files], capture_output=True, text=True, check=True
    )
    one, two = (json.loads(path.read_text(encoding="utf-8")) for path in files)

    fresh = float(done.stdout)
    assert (one[:2], one[4]) == (two[:2], two[4]) == ([0, {"ONLY": "this"}], fresh)
    assert {one[2], one[3]}.isdisjoint({two[2], two[3]})


def test_launcher_is_replaced_when_packages_change(launcher: PreforkClient) -> None:
    first = launcher_of(launcher)
    assert launcher.connection is not None
    launcher.connection.stamp = ()
    launcher._check_at = time.monotonic()
    wait_until(lambda: is_ready(launcher))

    assert launcher_of(launcher) != first
    wait_until(lambda: has_left(launcher, first))


def test_unused_launcher_leaves_and_returns_when_wanted(
    launcher: PreforkClient, model: Path, tmp_path: Path
) -> None:
    first = launcher_of(launcher)
    launcher._wanted_at -= launcher.settings.warm_launcher_idle_seconds
    wait_until(lambda: has_left(launcher, first))
    status = board.read_launcher(launcher.settings)
    run = tiny.write_run(tmp_path / "run", model)
    spawned = launcher.start(run)
    launcher.tick()
    is_delayed = launcher.connection is None
    wait_until(lambda: ended(spawned))
    launcher._next_at = time.monotonic()
    wait_until(lambda: is_ready(launcher))

    assert (status.state, is_delayed, launcher_of(launcher) == first) == ("idle", True, False)
    assert spawned.child is not None
    assert board.read_launcher(launcher.settings).state == "ready"


def test_launcher_has_one_thread_and_low_memory_use(shared: PreforkClient) -> None:
    told = board.read_launcher(shared.settings)

    assert (told.state, psutil.Process(told.pid).num_threads()) == ("ready", 1)
    assert 0 < told.memory_bytes < 10**9


def test_adopted_forked_run_reports_exit_code(
    model: Path, tmp_path: Path, shared: PreforkClient
) -> None:
    run = tiny.write_run(tmp_path / "run", model, optimisation__max_steps=100_000)
    forked = shared.start(run)
    adopted = process.find_process(forked.pid, forked.started, run)
    assert adopted is not None
    os.killpg(forked.pid, signal.SIGKILL)
    wait_until(lambda: ended(adopted))

    assert adopted.exit_code == -signal.SIGKILL


def test_launcher_can_be_disabled(tmp_path: Path) -> None:
    launcher = PreforkClient(Settings(home=tmp_path, warm_launcher=False))
    launcher.open()

    assert (launcher.connection, board.read_launcher(launcher.settings)) == (
        None,
        board.LauncherStatus(),
    )
