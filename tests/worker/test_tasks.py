"""Chores, done by real processes; some of them play a part."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from studio.data_sources import FetchLimits, FetchRequest, LocalFileSource
from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus, TaskStatus
from studio.db.tasks import Task
from studio.errors import ConflictError
from studio.protocols.tasks import TASK_DEFINITIONS, TaskDefinition, TaskDir
from studio.services.queue import concurrent_exports, task_results
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.tasks import TaskCommands
from tests.support.factories import make_run
from tests.support.waiting import wait_until
from tests.support.worker_processes import stop_processes, wait_for_task, wait_until_final

HERE = Path(__file__).parents[1]
PATIENCE_SECONDS = 30

Start = Callable[[str], WorkerLoop]


@pytest.fixture
def start(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make worker loops whose chores play a part, or do what they are for; none is left running."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    loops: list[WorkerLoop] = []

    def begin(part: str) -> WorkerLoop:
        runner = (sys.executable, str(HERE / "fakes" / "runner.py"), "succeed")
        chore = (sys.executable, str(HERE / "fakes" / "task.py"), part)
        commands = TaskCommands(task=chore) if part != "real" else TaskCommands()
        loop = WorkerLoop(engine, settings, LocalLauncher(command=runner), commands=commands)
        loops.append(loop)
        loop.adopt(alone=True)
        return loop

    yield begin
    for loop in loops:
        stop_processes(loop)


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"import_folders": (tmp_path,)})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a row"}\n' * 100_000)
    return path


@pytest.fixture
def chore(engine: Engine, source: Path) -> int:
    return ask(engine, "import:1", source)


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Listen to how chores end, in the place of who would make a data set of it."""
    told: list[tuple[str, object]] = []

    def listen(_db: Session, chore: Task, result: dict[str, object]) -> None:
        told.append((chore.status.value, result.get("rows")))

    monkeypatch.setitem(task_results.END_HANDLERS, "fetch", listen)
    return told


def ask(engine: Engine, subject: str, source: Path) -> int:
    with unit_of_work(engine) as db:
        errand = FetchRequest(
            source=LocalFileSource(path=str(source)),
            home=source.parent / "home" / "datasets",
            limits=FetchLimits(bytes=10**7, row_bytes=1000),
        )
        return tasks.enqueue(db, "fetch", subject, errand.model_dump(mode="json")).id or 0


def folder(settings: Settings, chore_id: int) -> TaskDir:
    return TaskDir(settings.tasks / str(chore_id))


def begun(chore: Task) -> bool:
    return chore.share > 0


def abandon(loop: WorkerLoop, chore_id: int = 1) -> subprocess.Popen[bytes]:
    """Take a chore's process away from a worker, as if that had been killed."""
    left = loop.scheduler.tasks.monitored.pop(chore_id).process
    return left.child or pytest.fail("It was our child.")


def test_file_is_fetched_by_separate_process(
    settings: Settings, start: Start, chore: int, source: Path
) -> None:
    made = wait_until_final(start("real"))

    arrival = made.result.pop("arrival")
    assert (made.status, arrival["format"], made.result) == (
        TaskStatus.SUCCEEDED,
        "jsonl",
        {
            "file": "fetched",
            "filename": "rows.jsonl",
            "bytes": 1_800_000,
            "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
            "facts": {},
        },
    )
    assert (folder(settings, chore).files / "fetched").read_bytes() == source.read_bytes()


@pytest.mark.usefixtures("chore")
def test_task_rejection_keeps_message_and_hint(start: Start, source: Path) -> None:
    source.unlink()
    made = wait_until_final(start("real"))

    assert (made.status, made.error_code, made.error_message, made.error_hint) == (
        TaskStatus.FAILED,
        "invalid",
        "No such file in the folders that are open for import.",
        "The operator opens folders with STUDIO_IMPORT_FOLDERS.",
    )


@pytest.mark.usefixtures("chore")
@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("fail", "It cannot be read."),
        ("die", "The fetch process was killed from outside the studio (SIGKILL)."),
        (
            "break",
            "The fetch process exited with code 3; "  # noqa: ISC004 -- one sentence
            "its last output was: RuntimeError: the reader broke.",
        ),
    ],
)
def test_failed_task_reports_reason(
    start: Start, part: str, says: str, heard: list[tuple[str, object]]
) -> None:
    made = wait_until_final(start(part))

    assert (made.status, made.error_message) == (TaskStatus.FAILED, says)
    assert heard == [("failed", None)]


@pytest.mark.usefixtures("chore")
def test_end_handler_is_called_once(start: Start, heard: list[tuple[str, object]]) -> None:
    loop = start("succeed")
    wait_until_final(loop)
    loop.tick()

    assert heard == [("succeeded", 3)]


@pytest.mark.usefixtures("chore")
def test_task_fails_when_its_end_handler_rejects_result(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_db: Session, _chore: Task, result: dict[str, object]) -> None:
        if result:
            raise ConflictError("The name is taken.", hint="Choose another.")

    monkeypatch.setitem(task_results.END_HANDLERS, "fetch", refuse)
    made = wait_until_final(start("succeed"))

    assert (made.status, made.error_message) == (TaskStatus.FAILED, "The name is taken.")


def test_second_worker_adopts_running_task(settings: Settings, start: Start, chore: int) -> None:
    first = start("wait")
    wait_for_task(first, begun)
    left = abandon(first)
    second = start("wait")
    (folder(settings, chore).root / "go").touch()
    left.wait()

    made = wait_until_final(second)
    assert (made.status, made.attempt) == (TaskStatus.SUCCEEDED, 1)


@pytest.mark.usefixtures("chore")
def test_restarted_task_keeps_its_files(start: Start) -> None:
    first = start("wait")
    wait_for_task(first, begun)
    left = abandon(first)
    left.kill()
    left.wait()

    second = start("wait")
    made = wait_for_task(second, begun)
    assert (made.attempt, made.phase) == (2, "found 1 files")


def test_task_fails_after_repeated_process_deaths(start: Start, engine: Engine, chore: int) -> None:
    for _ in range(tasks.MAX_ATTEMPTS):
        loop = start("wait")
        wait_for_task(loop, begun)
        left = abandon(loop)
        left.kill()
        left.wait()
    start("succeed")

    with read_session(engine) as db:
        made = tasks.get(db, chore)
    assert (made.status, made.error_code) == (TaskStatus.FAILED, "lost_worker")


def test_cancelled_task_leaves_no_process_or_files(
    engine: Engine, settings: Settings, start: Start, chore: int, heard: list[tuple[str, object]]
) -> None:
    loop = start("parent")
    child = folder(settings, chore).root / "child"
    wait_for_task(loop, lambda _one: child.exists() and child.read_text() != "")
    process, its_own = loop.scheduler.tasks.monitored[chore].process, int(child.read_text())
    with unit_of_work(engine) as db:
        task_results.cancel(db, chore)

    made = wait_until_final(loop)
    assert (made.status, heard) == (TaskStatus.CANCELLED, [("cancelled", None)])
    assert not process.is_alive
    wait_until(lambda: not psutil.pid_exists(its_own) or _is_dead(its_own))
    assert list(settings.tasks.iterdir()) == []


def test_next_worker_ends_task_cancelled_without_worker(
    engine: Engine, start: Start, chore: int
) -> None:
    first = start("wait")
    wait_for_task(first, begun)
    left = abandon(first)
    with unit_of_work(engine) as db:
        task_results.cancel(db, chore)
    second = start("wait")
    second.tick()
    left.wait()

    assert wait_until_final(second).status is TaskStatus.CANCELLED


def test_failed_task_can_be_retried(engine: Engine, start: Start, chore: int) -> None:
    wait_until_final(start("fail"))
    with unit_of_work(engine) as db:
        tasks.retry(tasks.get(db, chore))

    made = wait_until_final(start("succeed"))
    assert (made.status, made.error_message) == (TaskStatus.SUCCEEDED, "")


def test_number_of_concurrent_tasks_is_limited(engine: Engine, start: Start, source: Path) -> None:
    for number in range(concurrent_exports.MAX_TASKS + 1):
        ask(engine, f"import:{number}", source)
    loop = start("wait")
    loop.tick()

    with read_session(engine) as db:
        assert [one.subject for one in tasks.list_waiting(db, Task)] == [
            f"import:{concurrent_exports.MAX_TASKS}"
        ]


def test_tasks_do_not_wait_for_runs(engine: Engine, start: Start, source: Path) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    ask(engine, "import:1", source)
    loop = start("wait")
    loop.tick()

    with read_session(engine) as db:
        assert (len(runs.list_live(db)), len(tasks.list_live(db, Task))) == (1, 1)
    wait_for_task(loop, lambda _one: not loop.monitored)


def test_task_that_needs_device_waits_for_run(
    engine: Engine, start: Start, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        TASK_DEFINITIONS, "fetch", TaskDefinition("", "Measuring", needs_device=True)
    )
    with unit_of_work(engine) as db:
        run = make_run(db).id or 0
    ask(engine, "import:1", source)
    loop = start("succeed")
    loop.tick()
    with read_session(engine) as db:
        assert (len(runs.list_live(db)), len(tasks.list_waiting(db, Task))) == (1, 1)
    wait_until_final(loop)

    with read_session(engine) as db:
        assert runs.get(db, run).status is RunStatus.SUCCEEDED


def test_run_waits_for_task_that_holds_device(
    engine: Engine, start: Start, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        TASK_DEFINITIONS, "fetch", TaskDefinition("", "Measuring", needs_device=True)
    )
    ask(engine, "import:1", source)
    loop = start("wait")
    wait_for_task(loop, begun)
    with unit_of_work(engine) as db:
        run = make_run(db).id or 0
    loop.tick()

    with read_session(engine) as db:
        assert runs.get(db, run).status is RunStatus.QUEUED


def _is_dead(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
