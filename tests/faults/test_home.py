"""A home that is shared, killed, upgraded, moved and brought back, with real processes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from sqlalchemy import text

from studio.db import migrate
from studio.db.session import open_engine
from studio.services.operations import home
from studio.settings import Settings
from tests.support.live_studio import ROOT, Studio, free_port, get_run, stop_everything, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

SLOW = '''"""Take as long as somebody lets it."""

import time
from pathlib import Path

from alembic import op

revision = "9000"
down_revision = "{before}"


def upgrade() -> None:
    op.execute("ALTER TABLE run ADD COLUMN mood TEXT")
    op.execute("UPDATE dataset SET name = 'renamed'")
    Path({half!r}).touch()
    while not Path({go!r}).exists():
        time.sleep(0.05)
'''
OPEN = "from studio.services.operations import home; home.open_home(home.Settings()).dispose()"


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[str]]]:
    """End what a test started beside its studio."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def command(
    folder: Path, *words: str, program: Path = ROOT, code: str = ""
) -> subprocess.Popen[str]:
    """Start a program of a studio, of this version or of another."""
    typed = ["-c", code] if code else ["-m", "studio", *words]
    return subprocess.Popen(
        [sys.executable, *typed],
        cwd=program,
        env=os.environ | {"STUDIO_HOME": str(folder), "PYTHONPATH": str(program)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    """Wait for a program that must not fail. Return what it says."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def newer_program(folder: Path) -> tuple[Path, Path, Path]:
    """Copy this program and add a slow migration. Return it, its sign of life, its permission."""
    half, go = folder / "half", folder / "go"
    for name in ("studio", "migrations"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "newer" / name, ignore=ignored)
    slow = folder / "newer" / "migrations" / "versions" / "9000_slow.py"
    slow.write_text(SLOW.format(before=migrate.known_versions()[-1], half=str(half), go=str(go)))
    return folder / "newer", half, go


def names(folder: Path) -> list[str]:
    engine = open_engine(folder / "studio.db")
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
        found = list(connection.execute(text("SELECT name FROM dataset")).scalars())
    engine.dispose()
    return found


def test_interrupted_upgrade_keeps_old_database(
    starter_home: Path, tmp_path: Path, begun: list[subprocess.Popen[str]]
) -> None:
    folder = shutil.copytree(starter_home, tmp_path / "home")
    program, half, go = newer_program(tmp_path)
    upgrading = command(folder, program=program, code=OPEN)
    begun.append(upgrading)
    wait_until(half.exists)
    upgrading.kill()
    upgrading.wait()
    engine = home.open_home(Settings(home=folder))
    version = migrate.current_version(engine)
    engine.dispose()
    old = names(folder)
    go.touch()
    said(command(folder, program=program, code=OPEN))

    assert (version, old, names(folder)) == (migrate.known_versions()[-1], ["starter"], ["renamed"])
    assert [path.name[-8:] for path in (folder / "backups").iterdir()] == [
        f"-{version}.db"[-8:]
    ] * 2


def test_newer_studio_does_not_migrate_home_in_use(studio: Studio, tmp_path: Path) -> None:
    program, half, go = newer_program(tmp_path)
    go.touch()
    second = command(studio.home, program=program, code=OPEN)
    _out, err = second.communicate(timeout=120)
    untouched = not half.exists()
    studio.interrupt()
    studio.wait()
    said(command(studio.home, program=program, code=OPEN))

    assert f"Another studio is already using {studio.home} (web: process " in err
    assert (untouched, names(studio.home)) == (True, ["renamed"])


def test_studio_restarts_after_web_process_is_killed(
    studio: Studio,
) -> None:
    assert studio.process is not None
    web = psutil.Process(studio.process.pid)
    (worker,) = [one for one in web.children() if "worker" in one.cmdline()]
    web.send_signal(signal.SIGKILL)
    studio.wait()
    studio.start()
    number = submit_run(studio, max_steps=2)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")

    assert not worker.is_running()


def test_web_and_worker_can_run_as_separate_processes(
    starter_home: Path, tmp_path: Path, begun: list[subprocess.Popen[str]]
) -> None:
    studio = Studio.copied(starter_home, tmp_path / "home")
    studio.process = None
    begun.append(command(studio.home, "serve", "--no-worker", "--port", str(studio.port)))
    begun.append(command(studio.home, "worker"))
    wait_until(lambda: _is_well(studio))
    third = command(studio.home, "worker")
    _out, err = third.communicate(timeout=60)

    assert f"worker: process {begun[1].pid} since " in err


def _is_well(studio: Studio) -> bool:
    try:
        return studio.api.get("/health").status_code == 200
    except httpx2.TransportError:
        return False


def told(studio: Studio, number: int) -> dict[str, Any]:
    """Return what pages and API say of a studio, but for where and how long ago it is."""
    api = [
        *("/runs", "/datasets", "/models", f"/runs/{number}", f"/runs/{number}/artifacts"),
        *(f"/runs/{number}/metrics", f"/runs/{number}/samples", "/datasets/1/rows"),
    ]
    answers = {path: studio.api.get(path) for path in api}
    return {
        path: (answer.status_code, answer.text.replace(str(studio.home), "HOME"))
        for path, answer in answers.items()
    }


def files(folder: Path) -> dict[str, bytes]:
    inside = ("runs", "datasets", "models")
    found = [path for name in inside for path in (folder / name).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}


@pytest.fixture
def other() -> Iterator[Callable[[Path], Studio]]:
    """Start a studio on a folder that another has left or made."""
    started: list[Studio] = []

    def start(folder: Path) -> Studio:
        started.append(Studio(folder, free_port()))
        started[-1].start()
        return started[-1]

    yield start
    for studio in started:
        stop_everything(studio)


def test_restored_backup_equals_original_studio(
    studio: Studio, other: Callable[[Path], Studio], tmp_path: Path
) -> None:
    number = submit_run(studio, max_steps=4)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    said(command(studio.home, "backup", str(tmp_path / "b.zip")))
    said(command(studio.home, "restore", str(tmp_path / "b.zip"), "--into", str(tmp_path / "r")))
    whole = files(studio.home)
    before = told(studio, number)
    restored = other(tmp_path / "r")

    assert files(restored.home) == whole
    assert told(restored, number) == before


def test_backup_taken_during_training_can_be_restored(
    studio: Studio, other: Callable[[Path], Studio], tmp_path: Path
) -> None:
    number = submit_run(studio, max_steps=100_000)
    wait_until(lambda: get_run(studio, number)["step"] >= 3)
    said(command(studio.home, "backup", str(tmp_path / "b.zip")))
    said(command(studio.home, "restore", str(tmp_path / "b.zip"), "--into", str(tmp_path / "r")))
    restored = other(tmp_path / "r")
    assert get_run(restored, number)["status"] == "paused"
    seen = get_run(studio, number)["step"]
    wait_until(lambda: get_run(studio, number)["step"] > seen)

    assert get_run(restored, number)["step"] >= 3


def test_moved_home_can_train(
    studio: Studio, other: Callable[[Path], Studio], tmp_path: Path
) -> None:
    studio.interrupt()
    studio.wait()
    moved = other(studio.home.rename(tmp_path / "moved"))
    number = submit_run(moved, max_steps=2)
    wait_until(lambda: get_run(moved, number)["status"] in {"succeeded", "failed"})

    assert get_run(moved, number)["status"] == "succeeded"
