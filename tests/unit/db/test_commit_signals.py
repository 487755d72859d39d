"""Who sleeps until the next commit is woken by every one, and by nothing that was killed."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, func
from sqlmodel import select as query

from studio.db.commit_signals import FOLDER, CommitMailbox
from studio.db.session import CommitWatcher, read_session, unit_of_work, wait_for_commits
from studio.db.tables import Worker
from studio.settings import Settings
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 30.0
COMMITS = 200

WRITER = """
import sys
from pathlib import Path
from studio.db.session import open_engine, unit_of_work
from studio.db.tables import Worker
with unit_of_work(open_engine(Path(sys.argv[1]))) as db:
    db.add(Worker(name=sys.argv[2], pid=1, slots=1))
"""
SLEEPER = """
import sys, time
from pathlib import Path
from studio.db.commit_signals import CommitMailbox
mailbox = CommitMailbox(Path(sys.argv[1]))
print("open", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def same_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other processes import what this one tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture
def changes(engine: Engine) -> Iterator[CommitWatcher]:
    with wait_for_commits(engine) as changes:
        assert changes.has_new_commit()
        yield changes


def write(engine: Engine, name: str) -> None:
    with unit_of_work(engine) as db:
        db.add(Worker(name=name, pid=1, slots=1))


def count(engine: Engine) -> int:
    with read_session(engine) as db:
        return db.exec(query(func.count()).select_from(Worker)).one()


def in_thread(engine: Engine, name: str) -> None:
    writer = threading.Thread(target=write, args=(engine, name))
    writer.start()
    writer.join()


def is_rung(changes: CommitWatcher, seconds: float = 0) -> bool:
    assert changes.bell is not None
    return bool(select.select([changes.bell], [], [], seconds)[0])


def test_commit_of_another_process_wakes_the_waiter(
    changes: CommitWatcher, settings: Settings
) -> None:
    subprocess.run([sys.executable, "-c", WRITER, settings.database_file, "other"], check=True)

    assert is_rung(changes, PATIENCE_SECONDS)
    assert [changes.has_new_commit(), changes.has_new_commit()] == [True, False]


def test_only_what_others_have_changed_is_news(engine: Engine, changes: CommitWatcher) -> None:
    write(engine, "own")
    heard = [changes.has_new_commit()]
    with unit_of_work(engine):
        pass  # It changes nothing.
    heard.append(is_rung(changes))
    in_thread(engine, "another thread's")
    heard.append(changes.has_new_commit())

    assert heard == [False, False, True]


def test_no_commit_is_lost_between_a_look_and_the_wait(
    engine: Engine, changes: CommitWatcher
) -> None:
    turns = threading.Semaphore(0)

    def work() -> None:
        for number in range(COMMITS):
            turns.acquire()
            write(engine, f"w{number}")

    writer = threading.Thread(target=work)
    writer.start()
    seen = count(engine)
    for expected in range(seen + 1, seen + COMMITS + 1):
        turns.release()
        while count(engine) < expected:
            assert is_rung(changes, PATIENCE_SECONDS)
            changes.has_new_commit()
    writer.join()


def test_full_mailbox_blocks_no_writer(engine: Engine, changes: CommitWatcher) -> None:
    for number in range(COMMITS):
        in_thread(engine, f"w{number}")

    assert [changes.has_new_commit(), changes.has_new_commit()] == [True, False]


def test_killed_waiter_is_ignored_and_removed(engine: Engine, settings: Settings) -> None:
    folder = settings.home / FOLDER
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, folder], stdout=subprocess.PIPE
    ) as sleeper:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        left = list(folder.iterdir())
        sleeper.send_signal(signal.SIGKILL)
    write(engine, "without a reader")
    with wait_for_commits(engine) as changes:
        changes.has_new_commit()
        in_thread(engine, "to the next")
        heard = changes.has_new_commit()
        is_removed = not left[0].exists()

    assert (len(left), heard, is_removed, list(folder.iterdir())) == (1, True, True, [])


def test_home_deep_in_folders_can_have_a_mailbox(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6)
    folder.mkdir(parents=True)
    CommitMailbox(folder).close()

    assert not list(folder.iterdir())


def test_without_sockets_commits_are_found_by_asking(engine: Engine, settings: Settings) -> None:
    (settings.home / FOLDER).write_text("not a folder", encoding="utf-8")
    with wait_for_commits(engine) as changes:
        heard = [changes.has_new_commit(), changes.has_new_commit()]
        in_thread(engine, "w")
        wait_until(changes.has_new_commit)

    assert (changes.bell, heard) == (None, [True, False])
