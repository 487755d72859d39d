"""The studio's home folder: locked, migrated and set up before use.

Older homes have no folders of dataset versions: `<id>/1/train.jsonl` was `<id>/train.jsonl`. Each
step of moving them is a rename or idempotent, so the next start resumes an interrupted migration.
"""

import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine, event
from sqlmodel import select
from sqlmodel.sql.expression import SelectOfScalar

from studio.db import migrate
from studio.db.session import open_engine, read_session, unit_of_work
from studio.db.tables import DatasetVersion, Model
from studio.errors import UnavailableError
from studio.hardware import OPENMP_ENVIRONMENT, detect
from studio.intake.conversion.converter import hash_rows
from studio.services.datasets import datasets, pending_datasets, starter_dataset
from studio.services.metrics import metric_summaries
from studio.services.models import models
from studio.services.operations import restores
from studio.services.runs import bulk_actions
from studio.services.storage.locks import HomeLock, explain_os_errors
from studio.services.workers import workers
from studio.settings import Settings, without_secrets

STARTER = "starter"
STARTER_COMMAND = (sys.executable, "-m", "studio.training.starter_model")

MAKING_STARTER = "Creating the starter model (first start only)."
_STEP = re.compile(r"Step (\d+) of (\d+)\b")
"""What `studio.training.starter_model` logs while it trains."""

ReportProgress = Callable[[str], None]


def open_home(settings: Settings) -> Engine:
    """Create the home if it is missing, and upgrade its database.

    The home stays locked for sharing until the engine is disposed of, so that no restore replaces
    it.

    Raises:
        ConflictError: It must be upgraded, and another studio uses it.
        UnavailableError: The folder is not writable, or a newer studio wrote the database.

    """
    share = HomeLock(settings.home)
    engine = open_engine(settings.database)
    event.listen(engine, "engine_disposed", lambda _engine: share.close())
    try:
        _make_usable(engine, settings, share)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _make_usable(engine: Engine, settings: Settings, share: HomeLock) -> None:
    if restores.is_interrupted(settings.home):
        with share.exclusive():
            restores.finish(settings.home)
    with explain_os_errors(settings.home):
        for folder in (settings.runs, settings.datasets, settings.models):
            folder.mkdir(mode=0o700, exist_ok=True)
    if migrate.is_behind(engine):
        # Another process may have upgraded it before this one got the lock.
        with share.exclusive():
            migrate.upgrade(engine)
    if needs_migration(engine):
        with share.exclusive():
            migrate_layout(engine, settings.datasets)
    metric_summaries.backfill(engine)
    with unit_of_work(engine) as db:
        models.relocate(db, settings.home)
        models.refresh_facts(db)


def cleanup(engine: Engine, settings: Settings) -> None:
    """Remove what a killed web process left unfinished. The caller must hold the lock."""
    restores.cleanup(settings.home)
    with unit_of_work(engine) as db:
        datasets.cleanup(db, settings.datasets)
        models.cleanup(db, settings.models)
        bulk_actions.empty(db, settings.runs)


def install_starter(
    engine: Engine, settings: Settings, say: ReportProgress, report: ReportProgress
) -> None:
    """Add the starter dataset and model if they are missing, and queue the speed measurement.

    The model is trained here: 20 s on an idle CPU, minutes on a busy one. `report` gets
    the progress; each text replaces the previous one.

    Raises:
        UnavailableError: The model could not be created.

    """
    with unit_of_work(engine) as db:
        starter_dataset.get_or_create(db, settings.datasets)
        workers.enqueue_speed_measurement(db, detect())
        existing = db.exec(select(Model).where(Model.name == STARTER)).first()
    folder = settings.models / STARTER
    if existing and (folder / "config.json").exists():
        return
    if not detect().torch:
        say("The training packages are not installed: pip install 'mantissa-studio[train]'")
        return
    if not (folder / "config.json").exists():
        say(MAKING_STARTER)
        _build_starter(folder, report)
    if existing:
        return
    with unit_of_work(engine) as db:
        models.add(db, STARTER, str(folder), kind=STARTER)


def _build_starter(folder: Path, report: ReportProgress) -> None:
    last_lines: deque[str] = deque(["no reason given"], maxlen=1)
    with subprocess.Popen(  # noqa: S603 -- our own interpreter, our own path
        [*STARTER_COMMAND, str(folder)],
        env=OPENMP_ENVIRONMENT | without_secrets(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as builder:
        assert builder.stderr is not None  # noqa: S101 -- it is a pipe
        first: tuple[int, float] | None = None
        for line in builder.stderr:
            last_lines.extend([line.strip()] if line.strip() else [])
            if match := _STEP.match(line):
                step, steps = int(match[1]), int(match[2])
                first = first or (step, time.monotonic())
                report(_progress_text(step, steps, first))
    if builder.returncode:
        raise UnavailableError(
            f"The starter model could not be created: {last_lines[0]}", hint="Run `studio doctor`."
        )


def _progress_text(step: int, steps: int, first: tuple[int, float]) -> str:
    """Return the progress; extrapolate the time left from the steps since the `first` report."""
    first_step, started_at = first
    if step == first_step:
        return f"{MAKING_STARTER} Step {step} of {steps}"
    seconds_left = (time.monotonic() - started_at) / (step - first_step) * (steps - step)
    return f"{MAKING_STARTER} Step {step} of {steps}, about {seconds_left:.0f} s left"


_PARTS = ("train.jsonl", "validation.jsonl")


def needs_migration(engine: Engine) -> bool:
    """Return whether versions exist whose files have not been moved."""
    with read_session(engine) as db:
        return db.exec(_unmigrated()).first() is not None


def migrate_layout(engine: Engine, folder: Path) -> None:
    """Move the files of each such version, and store the checksum of its rows."""
    with read_session(engine) as db:
        versions = db.exec(_unmigrated()).all()
    for version in versions:
        home = folder / str(version.dataset_id)
        _move(home, home / str(version.number))
        if version.validation_rows:
            _link_validation(home / str(version.number) / "validation.jsonl", home)
        sha256 = hash_rows(home / str(version.number))
        with unit_of_work(engine) as db:
            db.get_one(DatasetVersion, version.id).sha256 = sha256


def _unmigrated() -> SelectOfScalar[DatasetVersion]:
    return select(DatasetVersion).where(DatasetVersion.sha256 == "")


def _move(home: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in _PARTS:
        with suppress(FileNotFoundError):
            (home / name).replace(target / name)


def _link_validation(rows: Path, home: Path) -> None:
    """Link the validation rows as the uploaded validation file, which was not stored then."""
    with suppress(FileExistsError):
        (home / f"{pending_datasets.VALIDATION}.jsonl").hardlink_to(rows)
