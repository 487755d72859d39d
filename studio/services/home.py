"""The folder where a studio keeps everything: locked, migrated and furnished before it is used."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sqlalchemy import Engine
from sqlmodel import select

from studio.db import migrate
from studio.db.session import connect, unit_of_work
from studio.db.tables import Model
from studio.errors import ConflictError, DiskFullError, UnavailableError
from studio.hardware import POLITE, detect
from studio.services import datasets, models
from studio.settings import Settings

STARTER = "starter"
BUILDER = (sys.executable, "-m", "studio.training.starter")

Role = Literal["web", "worker"]
Say = Callable[[str], None]


def open_home(settings: Settings) -> Engine:
    """Make the folder if it is missing, and bring its database to the present version.

    Raises:
        UnavailableError: the folder cannot be written, or a newer studio wrote the database.

    """
    try:
        for folder in (settings.home, settings.runs, settings.datasets, settings.models):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(settings.home, error) from error
    engine = connect(settings.database)
    migrate.upgrade(engine)
    return engine


@contextmanager
def only_one(settings: Settings, role: Role, address: str) -> Iterator[None]:
    """Hold the folder for one process of a kind. The lock goes with the process, however it ends.

    Raises:
        ConflictError: another process of this kind uses the folder; the message says which.

    """
    path = settings.home / f"{role}.lock"
    with path.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise ConflictError(
                f"Another studio already uses {settings.home} ({role}: {lock.read().strip()}).",
                hint="Open that one, or choose another folder with STUDIO_HOME.",
            ) from error
        lock.seek(0)
        lock.truncate()
        lock.write(f"process {os.getpid()}, {address}")
        lock.flush()
        yield


def tidy(engine: Engine, settings: Settings) -> None:
    """Clear away what a killed web process left half done. The next one may: it has the lock."""
    with unit_of_work(engine) as db:
        datasets.tidy(db, settings.datasets)


def furnish(engine: Engine, settings: Settings, say: Say) -> None:
    """Add the starter data set and model where they are missing; the model takes some seconds."""
    with unit_of_work(engine) as db:
        datasets.add_starter(db, settings.datasets)
        if db.exec(select(Model).where(Model.name == STARTER)).first():
            return
    if not detect().torch:
        say("The training packages are missing: pip install 'mantissa-studio[train]'")
        return
    folder = settings.models / STARTER
    if not (folder / "config.json").exists():
        say("Making the starter model, once. This takes about 20 seconds.")
        _build(folder)
    with unit_of_work(engine) as db:
        models.add(db, STARTER, str(folder), kind=STARTER)


def _build(folder: Path) -> None:
    built = subprocess.run(  # noqa: S603 -- our own interpreter, our own path
        [*BUILDER, str(folder)],
        env=POLITE | os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        last = (built.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UnavailableError(
            f"The starter model could not be made: {last}", hint="Run `studio doctor`."
        )


def _unwritable(folder: Path, error: OSError) -> UnavailableError:
    if error.errno == errno.ENOSPC:
        return DiskFullError(f"The disk that holds {folder} is full.", hint="Free some space.")
    return UnavailableError(
        f"{folder} cannot be used: {error.strerror}.",
        hint="Choose another folder with STUDIO_HOME.",
    )
