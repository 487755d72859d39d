"""Training processes that end without a word, and what their runs are told to have died of."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.protocols.run_dir import JobSpec, RunDir
from studio.runner.execution import lock_run
from studio.services.runs import attempts, run_commands, runs
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes import cgroups, process
from studio.worker.processes.launcher import LocalLauncher
from tests.support.factories import make_run
from tests.support.waiting import wait_until

FAKE = str(Path(__file__).parents[1] / "fakes" / "runner.py")
LIMIT = 200 * 2**20
GROUPS = cgroups.find_parent()

needs_groups = pytest.mark.skipif(
    GROUPS is None, reason="This system lets nobody here make control groups that count memory."
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def played(engine: Engine, settings: Settings, launcher: LocalLauncher, **changes: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    """Run a part to its end."""
    loop = WorkerLoop(engine, settings, launcher)
    with unit_of_work(engine) as db:
        run_id = make_run(db, **changes).id or 0

    def is_over() -> bool:
        loop.tick()
        with read_session(engine) as db:
            return runs.get(db, run_id).status.is_final and not loop.monitored

    wait_until(is_over)
    with read_session(engine) as db:
        return runs.get(db, run_id)


def acts(part: str) -> tuple[str, ...]:
    return (sys.executable, FAKE, part)


def test_crash_in_compiled_code_names_signal(engine: Engine, settings: Settings) -> None:
    run = played(engine, settings, LocalLauncher(command=acts("segfault")))

    assert (run.error_code, run.error_message) == (
        "crashed",
        "The training process crashed in compiled code (SIGSEGV).",
    )


@needs_groups
def test_run_killed_at_memory_limit_reports_out_of_memory(
    engine: Engine, settings: Settings
) -> None:
    launcher = LocalLauncher(command=acts("eat"), cgroups=GROUPS, memory_limit=LIMIT)
    run = played(engine, settings, launcher)

    with read_session(engine) as db:
        (attempt,) = attempts.list_attempts(db, run.id or 0)
    assert (run.status, run.error_code, run.error_message, attempt.exit_code) == (
        RunStatus.FAILED,
        "out_of_memory",
        "The system killed the training process because this machine ran out of memory.",
        -9,
    )


def test_memory_limit_works_without_cgroups(engine: Engine, settings: Settings) -> None:
    run = played(engine, settings, LocalLauncher(command=acts("eat"), memory_limit=LIMIT))

    assert (run.status, run.error_code) == (RunStatus.FAILED, "out_of_memory")


@needs_groups
def test_cgroup_is_removed_when_run_ends(engine: Engine, settings: Settings) -> None:
    launcher = LocalLauncher(command=acts("segfault"), cgroups=GROUPS)
    played(engine, settings, launcher)

    assert launcher.cgroups is not None
    assert [
        launcher.cgroups.group_of(child.pid).path.exists() for child in launcher._children.values()
    ] == [False]


@needs_groups
def test_cgroup_kill_reaches_processes_outside_session() -> None:
    """The helpers of a run may have gone where signals to its session reach them no more."""
    assert GROUPS is not None
    starter = "import subprocess, sys; subprocess.run(['sleep', '60'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", starter]) as child:
        group = GROUPS.create(child.pid, None)
        assert group is not None
        members = group.path / "cgroup.procs"
        wait_until(lambda: len(members.read_text(encoding="ascii").split()) == 2)
        group.kill()
        wait_until(lambda: child.poll() is not None and not members.read_text(encoding="ascii"))
    group.remove()

    assert (child.returncode, group.path.exists()) == (-9, False)


def test_restarted_run_starts_without_old_artifacts(engine: Engine, settings: Settings) -> None:
    launcher = LocalLauncher(command=acts("fail"))
    run = played(engine, settings, launcher)
    folder = RunDir(settings.runs / str(run.id))
    folder.artifacts.mkdir()
    with unit_of_work(engine) as db:
        run_commands.restart(db, run.id or 0)
    loop = WorkerLoop(engine, settings, launcher)

    def is_over() -> bool:
        loop.tick()
        with read_session(engine) as db:
            return runs.get(db, 1).status.is_final and not loop.monitored

    wait_until(is_over)
    with read_session(engine) as db:
        tried = [(one.number, one.from_step) for one in attempts.list_attempts(db, 1)]
    spec = JobSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))
    assert (tried, spec.attempt, spec.resume) == ([(1, 0), (2, 0)], 2, False)
    assert not folder.artifacts.exists()


def test_leftover_child_process_does_not_hold_run_lock(tmp_path: Path) -> None:
    """A helper that was forked holds the lock on; the next attempt must not wait for it."""
    folder = RunDir(tmp_path)
    forker = (
        "import os, sys, time; from pathlib import Path;"
        "from studio.protocols.run_dir import RunDir;"
        "from studio.runner.execution import lock_run\n"
        "with lock_run(RunDir(Path(sys.argv[1]))):\n"
        "    child = os.fork()\n"
        "    if child: print(child, flush=True)\n"
        "    time.sleep(60)"
    )
    command = [sys.executable, "-c", forker, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        helper = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        assert (process.find_training_process(folder), helper.is_running()) == (None, True)
        process.kill_leftovers(folder)
        wait_until(lambda: not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE)

    with lock_run(folder):
        assert folder.lock.read_text(encoding="ascii").startswith(f"{os.getpid()} ")


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can make a disk of a few kilobytes.")
def test_full_disk_is_detected_when_process_cannot_report_it(
    engine: Engine, settings: Settings
) -> None:
    settings.runs.mkdir(exist_ok=True)
    mounted = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(settings.runs)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("This machine lets nobody mount a small disk.")
    try:
        run = played(engine, settings, LocalLauncher(command=acts("fill")))
    finally:
        subprocess.run(["umount", settings.runs], check=True)  # noqa: S607 -- where a system keeps it

    assert (run.status, run.error_code) == (RunStatus.FAILED, "disk_full")


def test_out_of_memory_run_retries_with_smaller_batches_if_allowed(
    engine: Engine, settings: Settings
) -> None:
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    run = played(
        engine,
        settings,
        LocalLauncher(command=acts("fail")),
        optimisation=batches,
        recovery={"smaller_batches": True},
    )

    with read_session(engine) as db:
        told = [one.data for one in runs.list_events(db, run.id or 0) if one.kind == "shrunk"]
        ended = [one.outcome for one in attempts.list_attempts(db, run.id or 0)]
    assert [(one["from"], one["to"], one["accumulation"]) for one in told] == [
        (4, 2, 6),
        (2, 1, 12),
    ]
    assert (run.status, run.error_code, ended) == (
        RunStatus.FAILED,
        "out_of_memory",
        ["failed"] * 3,
    )
