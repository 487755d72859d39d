"""Files and rows stay together, whatever fails between them."""

from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.errors import DiskFullError
from studio.services.storage import atomic_dirs


def test_full_disk_raises_error_with_hint() -> None:
    with (
        pytest.raises(DiskFullError) as refused,
        atomic_dirs.explain_disk_full(),
        Path("/dev/full").open("w", buffering=1) as full,
    ):
        full.write("more than fits\n")

    assert refused.value.hint == "Free some space, then try again."


def test_staging_folder_is_removed_when_filling_fails(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), atomic_dirs.staging_dir(tmp_path) as stage:
        (stage / "half").touch()
        _ = 1 / 0

    assert list(tmp_path.iterdir()) == []


def test_staged_folder_replaces_leftovers_of_crash(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "old").touch()

    with atomic_dirs.staging_dir(tmp_path) as stage:
        (stage / "new").touch()
        atomic_dirs.move_into_place(stage, tmp_path / "7")

    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["7", "7/new"]


def test_files_are_restored_when_deletion_is_rolled_back(engine: Engine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "7").mkdir(parents=True)

    with suppress(ZeroDivisionError), unit_of_work(engine) as db:
        db.connection()
        atomic_dirs.delete_on_commit(db, data / "7")
        _ = 1 / 0

    assert [path.name for path in data.iterdir()] == ["7"]


def test_orphan_cleanup_removes_leftovers_and_restores_referenced_folders(tmp_path: Path) -> None:
    for name in ("1", "2", ".new-abc", ".gone-3-abc", ".gone-4-abc", "notes"):
        (tmp_path / name).mkdir()

    atomic_dirs.remove_orphans(tmp_path, {"1", "3"})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3", "notes"]
