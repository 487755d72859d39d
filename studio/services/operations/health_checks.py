"""What may hurt a studio's data, looked for before it does: each finding is a sentence."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from studio.db.session import FIRST_SAFE_SQLITE, sqlite_driver
from studio.settings import Settings

MIN_FREE_BYTES = 5 * 10**9
"""Less than this is soon filled by a model and its checkpoints."""

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("9p", "drvfs", "v9fs", "vboxsf", "fuse.vmhgfs-fuse"),
        *("afpfs", "afs", "cifs", "davfs", "nfs", "nfs4", "smb3", "smbfs", "webdav"),
        *("ceph", "fuse.glusterfs", "gfs2", "glusterfs", "lustre", "ocfs2"),
        *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""File systems that another system writes, too, by their names in the kernel."""

CLOCK_TOLERANCE = timedelta(minutes=5)
"""How far clocks may differ with nothing being wrong."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    good: bool | None
    """None for what is not for this machine, with nothing wrong about that."""
    text: str


def check_home(settings: Settings) -> Iterator[CheckResult]:
    """Look at the database's engine, and at the folder that it lies in."""
    yield check_sqlite(sqlite_driver().sqlite_version_info)
    mounts = {one.mountpoint: one.fstype for one in psutil.disk_partitions(all=True)}
    yield check_file_system(settings.home, mounts)
    yield check_free_space(settings.home, shutil.disk_usage(_nearest_existing(settings.home)).free)
    yield check_permissions(settings.home)
    yield check_clock(settings.database, datetime.now(UTC))


def check_sqlite(version: tuple[int, ...]) -> CheckResult:
    text = f"SQLite {'.'.join(map(str, version))}"
    if version < FIRST_SAFE_SQLITE:
        return CheckResult(
            good=False,
            text=f"{text} can lose a database when two processes write at the same instant; "
            "pip install pysqlite3 brings a newer one",
        )
    return CheckResult(good=True, text=text)


def check_file_system(home: Path, mounts: Mapping[str, str]) -> CheckResult:
    """Find the file system by the innermost of the places where one is mounted."""
    place = _nearest_existing(home).resolve()
    above = [str(path) for path in (place, *place.parents)]
    kind = next((mounts[path] for path in above if path in mounts), "unknown")
    if kind.lower() in NETWORK_FILE_SYSTEMS:
        return CheckResult(
            good=False,
            text=f"{home} is on a network file system ({kind}), where SQLite can lose data; "
            "choose a folder on a disk of this machine with STUDIO_HOME",
        )
    return CheckResult(good=True, text=f"{home} is on a file system of this machine ({kind})")


def check_free_space(home: Path, free: int) -> CheckResult:
    text = f"{free / 10**9:.0f} GB free for {home}"
    if free > MIN_FREE_BYTES:
        return CheckResult(good=True, text=text)
    return CheckResult(
        good=False, text=f"only {text}: delete runs, or what restores set aside, or move the home"
    )


def check_permissions(home: Path) -> CheckResult:
    if not home.exists():
        return CheckResult(good=True, text=f"{home} will be made at the first start")
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return CheckResult(good=False, text=f"{home} cannot be written by the user of this studio")
    if home.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return CheckResult(
            good=False,
            text=f"{home} can be opened by other users of this machine: chmod 700 {home}",
        )
    return CheckResult(good=True, text=f"{home} is yours alone")


def check_clock(database: Path, now: datetime) -> CheckResult:
    """Compare the clock with the last time that the database was written."""
    files = (database, database.with_name(f"{database.name}-wal"))
    last = max((file.stat().st_mtime for file in files if file.exists()), default=0)
    ahead = datetime.fromtimestamp(last, UTC) - now
    if ahead > CLOCK_TOLERANCE:
        return CheckResult(
            good=False,
            text=f"the clock is {ahead // timedelta(minutes=1)} minutes behind the last change of "
            "the database: times and the order of runs will be wrong",
        )
    return CheckResult(good=True, text="the clock runs forward")


def _nearest_existing(home: Path) -> Path:
    return next(path for path in (home, *home.parents) if path.exists())
