"""A PostgreSQL server for tests, from the system's packages: on a socket, in a temporary folder.

Each test gets a database of its own, a copy of a template: tens of milliseconds.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

VARIABLE = "STUDIO_TEST_POSTGRES"
"""Set it to run any test on PostgreSQL: `make test-postgres`."""

file_only = pytest.mark.skipif(VARIABLE in os.environ, reason="about the SQLite file itself")

_PLAIN = ("-c", "max_connections=200", "-c", "listen_addresses=")
_SPEED = (
    *("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"),
    *("-c", "wal_level=minimal", "-c", "max_wal_senders=0", "-c", "autovacuum=off"),
    *("-c", "shared_buffers=64MB"),
)


def find_programs() -> Path | None:
    """Return the folder of the newest installed server."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max(
        (path.parent for path in found), key=lambda path: int(path.parent.name), default=None
    )


def missing_reason() -> str:
    """Return why no server can be started; empty if one can."""
    if find_programs() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    try:
        import psycopg  # noqa: F401, PLC0415 -- optional dependency
    except ImportError:
        return "psycopg is not installed: pip install 'mantissa-studio[postgres]'"
    return ""


@dataclass(slots=True)
class Server:
    folder: Path
    durable: bool = False
    """Whether commits are as safe, and as slow, as in production."""
    process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def programs(self) -> Path:
        found = find_programs()
        assert found is not None
        return found

    def url(self, name: str) -> str:
        return f"postgresql://studio@/{name}?host={self.folder}"

    def name(self, url: str) -> str:
        return url.partition("@/")[2].partition("?")[0]

    def start(self) -> None:
        folders = ("-D", self.folder / "data", "-k", self.folder)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", *folders, *_PLAIN, *(() if self.durable else _SPEED)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_unprivileged(),
            )
        ready: list[str | Path] = [self.programs / "pg_isready", "-q", "-h", self.folder]
        while subprocess.run(ready, check=False).returncode:
            assert self.process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """Stop at once, as when its machine fails."""
        assert self.process is not None
        self.process.send_signal(3)  # SIGQUIT
        self.process.wait()

    def create(self, template: str = "template0") -> str:
        """Create a database, a copy of another one, and return its name."""
        name = f"t{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        import psycopg  # noqa: PLC0415 -- optional dependency

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@contextmanager
def run_server(*, durable: bool = False) -> Iterator[Server]:
    """Run a server of its own for this process, and delete it afterwards."""
    # The path of a socket may have 107 characters: pytest's folders are too deep.
    memory = None if durable else _memory()
    server = Server(Path(mkdtemp(prefix="pg-", dir=memory)), durable)
    try:
        user = _unprivileged()
        if user:
            os.chown(server.folder, user["user"], user["group"])
        initdb: list[str | Path] = [server.programs / "initdb", "-D", server.folder / "data"]
        options = [
            "--username=studio",
            "--auth=trust",
            "--no-sync",
            "--locale=C",
            "--encoding=UTF8",
        ]
        subprocess.run([*initdb, *options], check=True, capture_output=True, **user)
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.stop()
        shutil.rmtree(server.folder)


def _unprivileged() -> dict[str, Any]:
    """Return whom to run the server as: it refuses to run as root."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _memory() -> Path | None:
    """Return a folder in memory, if it has room: databases are created by copying files."""
    folder = Path("/dev/shm")  # noqa: S108 -- a folder of our own is made in it
    has_room = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 2**30
    return folder if has_room else None
