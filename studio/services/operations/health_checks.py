"""Health checks of the home: database, file system, free space, permissions and clock."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from studio.db.session import (
    FIRST_SAFE_SQLITE,
    current_time,
    describe_database,
    open_database,
    read_session,
    sqlite_driver,
)
from studio.errors import StudioError
from studio.settings import Settings

MIN_FREE_BYTES = 5 * 10**9
"""A model and its checkpoints soon fill less than this."""

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("9p", "drvfs", "v9fs", "vboxsf", "fuse.vmhgfs-fuse"),
        *("afpfs", "afs", "cifs", "davfs", "nfs", "nfs4", "smb3", "smbfs", "webdav"),
        *("ceph", "fuse.glusterfs", "gfs2", "glusterfs", "lustre", "ocfs2"),
        *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""Kernel names of file systems that other machines may write, too."""

CLOCK_TOLERANCE = timedelta(minutes=5)
"""Smallest clock difference that is reported."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    good: bool | None
    """None if the check does not apply to this machine."""
    text: str


def check_home(settings: Settings) -> Iterator[CheckResult]:
    """Check the database and the home folder."""
    if settings.database.get_secret_value():
        yield check_server(settings, datetime.now(UTC))
    else:
        yield from check_file(settings)
    yield check_free_space(settings.home, shutil.disk_usage(_nearest_existing(settings.home)).free)
    yield check_permissions(settings.home)


def check_file(settings: Settings) -> Iterator[CheckResult]:
    """Check what a database in a file depends on."""
    yield check_sqlite(sqlite_driver().sqlite_version_info)
    mounts = {
        partition.mountpoint: partition.fstype for partition in psutil.disk_partitions(all=True)
    }
    yield check_file_system(settings.home, mounts)
    yield check_clock(settings.database_file, datetime.now(UTC))


def check_server(settings: Settings, now: datetime) -> CheckResult:
    """Check whether the database server answers, and compare the clocks."""
    where = describe_database(settings)
    try:
        engine = open_database(settings)
        with read_session(engine) as db:
            apart = abs(current_time(db) - now)
        engine.dispose()
    except StudioError as error:
        return CheckResult(good=False, text=f"{error.message} {error.hint}")
    if apart > CLOCK_TOLERANCE:
        return CheckResult(
            good=False,
            text=f"the clock differs by {apart // timedelta(minutes=1)} minutes from that of the "
            f"database at {where}: times will be wrong",
        )
    return CheckResult(good=True, text=f"the database at {where} answers")


def check_sqlite(version: tuple[int, ...]) -> CheckResult:
    text = f"SQLite {'.'.join(map(str, version))}"
    if version < FIRST_SAFE_SQLITE:
        return CheckResult(
            good=False,
            text=f"{text} can lose a database when two processes write at the same time; "
            "pip install pysqlite3 for a newer version",
        )
    return CheckResult(good=True, text=text)


def check_file_system(home: Path, mounts: Mapping[str, str]) -> CheckResult:
    """Find the file system of the home's innermost mount point."""
    folder = _nearest_existing(home).resolve()
    ancestors = [str(path) for path in (folder, *folder.parents)]
    kind = next((mounts[path] for path in ancestors if path in mounts), "unknown")
    if kind.lower() in NETWORK_FILE_SYSTEMS:
        return CheckResult(
            good=False,
            text=f"{home} is on a network file system ({kind}), where SQLite can lose data; "
            "set STUDIO_HOME to a folder on a local disk",
        )
    return CheckResult(good=True, text=f"{home} is on a local file system ({kind})")


def check_free_space(home: Path, free: int) -> CheckResult:
    text = f"{free / 10**9:.0f} GB free for {home}"
    if free > MIN_FREE_BYTES:
        return CheckResult(good=True, text=text)
    return CheckResult(
        good=False, text=f"only {text}: delete runs or old replaced-* folders, or move the home"
    )


def check_permissions(home: Path) -> CheckResult:
    if not home.exists():
        return CheckResult(good=True, text=f"{home} will be created at the first start")
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return CheckResult(
            good=False, text=f"{home} is not writable by the user that runs the studio"
        )
    if home.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return CheckResult(
            good=False,
            text=f"{home} is accessible to other users of this machine: chmod 700 {home}",
        )
    return CheckResult(good=True, text=f"{home} is accessible to you only")


def check_clock(database: Path, now: datetime) -> CheckResult:
    """Compare the clock with the last change of the database."""
    files = (database, database.with_name(f"{database.name}-wal"))
    last = max((file.stat().st_mtime for file in files if file.exists()), default=0)
    ahead = datetime.fromtimestamp(last, UTC) - now
    if ahead > CLOCK_TOLERANCE:
        return CheckResult(
            good=False,
            text=f"the clock is {ahead // timedelta(minutes=1)} minutes behind the last change of "
            "the database: times and the order of runs will be wrong",
        )
    return CheckResult(good=True, text="the clock is not behind")


def _nearest_existing(home: Path) -> Path:
    return next(path for path in (home, *home.parents) if path.exists())
