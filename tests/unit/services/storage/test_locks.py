"""Who may use a home at the same time."""

import os
from pathlib import Path

import pytest

from studio.errors import ConflictError
from studio.services.storage import locks


def test_second_studio_on_same_folder_is_rejected(tmp_path: Path) -> None:
    with (
        locks.single_process(tmp_path, "web", "http://127.0.0.1:8000/"),
        pytest.raises(ConflictError) as refused,
        locks.single_process(tmp_path, "web", "http://127.0.0.1:8001/"),
    ):
        pytest.fail("Two studios share a folder.")

    said = refused.value.message
    assert said.startswith(
        f"Another studio is already using {tmp_path} (web: process {os.getpid()} "
    )
    assert said.endswith(", http://127.0.0.1:8000/).")
    assert "STUDIO_HOME" in refused.value.hint


def test_lock_is_released_when_holder_exits(tmp_path: Path) -> None:
    with locks.single_process(tmp_path, "web", "first"):
        pass
    with locks.single_process(tmp_path, "web", "second"):
        assert (tmp_path / "web.lock").read_text().endswith(", second")


def test_web_and_worker_can_share_folder(tmp_path: Path) -> None:
    with locks.single_process(tmp_path, "web", "a"), locks.single_process(tmp_path, "worker", "b"):
        assert (tmp_path / "worker.lock").exists()


@pytest.mark.slow
def test_shared_home_cannot_be_locked_exclusively(tmp_path: Path) -> None:
    first, second = locks.HomeLock(tmp_path), locks.HomeLock(tmp_path)
    with pytest.raises(ConflictError), first.exclusive():
        pytest.fail("Another uses the home.")
    second.close()
    with first.exclusive():
        pass
    first.close()


@pytest.mark.slow
def test_exclusive_lock_error_names_holding_process(tmp_path: Path) -> None:
    user, changer = locks.HomeLock(tmp_path), locks.HomeLock(tmp_path)
    with (
        locks.single_process(tmp_path, "worker", "the queue"),
        pytest.raises(ConflictError) as refused,
        changer.exclusive(),
    ):
        pytest.fail("A worker uses the home.")
    user.close()
    changer.close()

    assert f"(worker: process {os.getpid()} since " in refused.value.message
