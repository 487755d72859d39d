"""What may hurt the data: found on machines made up for it, and absent on a good one."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from studio.services.operations import health_checks
from studio.settings import Settings

MOUNTS = {"/": "ext4", "/mnt": "nfs4", "/mnt/disk": "xfs"}


def test_unsafe_sqlite_version_is_reported() -> None:
    assert health_checks.check_sqlite((3, 40, 1)).good is False
    assert health_checks.check_sqlite((3, 53, 4)).good is True


@pytest.mark.parametrize(
    ("place", "kind", "good"),
    [("/home/me", "ext4", True), ("/mnt/me", "nfs4", False), ("/mnt/disk/me", "xfs", True)],
)
def test_network_file_system_is_reported(
    tmp_path: Path, place: str, kind: str, *, good: bool
) -> None:
    home = tmp_path / place.removeprefix("/")
    home.mkdir(parents=True)
    mounts = {str(tmp_path / mount.removeprefix("/")): name for mount, name in MOUNTS.items()}
    found = health_checks.check_file_system(home, mounts)

    assert (found.good, f"({kind})" in found.text) == (good, True)


def test_nearly_full_disk_is_reported(tmp_path: Path) -> None:
    assert [health_checks.check_free_space(tmp_path, free).good for free in (10**9, 10**11)] == [
        False,
        True,
    ]


def test_home_accessible_to_others_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert health_checks.check_permissions(tmp_path).text.endswith(f"chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert health_checks.check_permissions(tmp_path).good is True


def test_clock_set_back_is_reported(tmp_path: Path) -> None:
    database, now = tmp_path / "studio.db", datetime(2026, 1, 1, tzinfo=UTC)
    database.touch()
    os.utime(database, times=(later := (now + timedelta(hours=3)).timestamp(), later))

    assert health_checks.check_clock(database, now).text.startswith(
        "the clock is 180 minutes behind"
    )
    assert health_checks.check_clock(database, now + timedelta(hours=3)).good is True


def test_healthy_home_passes_all_checks(settings: Settings) -> None:
    told = {
        one.text: one.good
        for one in health_checks.check_home(settings)
        if "free for" not in one.text
    }

    assert set(told.values()) == {True}, told
