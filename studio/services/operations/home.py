"""The studio's home folder: locked, migrated and set up before use.

Older homes have no folders of dataset versions: `<id>/1/train.jsonl` was `<id>/train.jsonl`. Each
step of moving them is a rename or idempotent, so the next start resumes an interrupted migration.
"""

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Engine, event
from sqlmodel import select
from sqlmodel.sql.expression import SelectOfScalar

from studio import files
from studio.db import migrate, postgres
from studio.db.session import is_on_server, open_database, read_session, unit_of_work
from studio.db.tables import DatasetVersion
from studio.errors import ConflictError
from studio.hardware import detect
from studio.intake.conversion.converter import hash_rows
from studio.services.datasets import datasets, pending_datasets, starter_dataset
from studio.services.metrics import metric_summaries
from studio.services.models import models, starter_model
from studio.services.operations import restores
from studio.services.runs import bulk_actions
from studio.services.storage.locks import HomeLock, explain_os_errors
from studio.services.workers import workers
from studio.settings import Settings


def open_home(settings: Settings) -> Engine:
    """Create the home if it is missing, and upgrade its database.

    The home stays locked for sharing until the engine is disposed of, so that no restore replaces
    it.

    Raises:
        ConflictError: It must be upgraded, and another studio uses it; or the database belongs to
            another home.
        UnavailableError: The folder is not writable, or a newer studio wrote the database.

    """
    share = HomeLock(settings.home)
    engine = open_database(settings)
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
    if is_on_server(engine):
        _require_own_database(engine, settings)
    if needs_migration(engine):
        with share.exclusive():
            migrate_layout(engine, settings.datasets)
    metric_summaries.backfill(engine)
    with unit_of_work(engine) as db:
        models.relocate(db, settings.home)
        models.refresh_facts(db)


def _require_own_database(engine: Engine, settings: Settings) -> None:
    """Refuse the database of another home, whose runs and models have no files in this one."""
    with unit_of_work(engine) as db:
        connection = db.connection()
        owner = postgres.home_of(connection)
        if owner is None:
            owner = settings.id_file.read_text() if settings.id_file.exists() else uuid4().hex
            files.replace_text(settings.id_file, owner)
            postgres.set_home(connection, owner)
    if not settings.id_file.exists() or settings.id_file.read_text() != owner:
        raise ConflictError(
            f"The database belongs to another home than {settings.home}.",
            hint="Set STUDIO_HOME to the home that was used with it, or STUDIO_DATABASE to an "
            "empty database. If you have moved the home, copy its file home_id, too.",
        )


def cleanup(engine: Engine, settings: Settings) -> None:
    """Remove what a killed web process left unfinished. The caller must hold the lock."""
    restores.cleanup(settings.home)
    with unit_of_work(engine) as db:
        datasets.cleanup(db, settings.datasets)
        models.cleanup(db, settings.models)
        bulk_actions.empty(db, settings.runs)


def install_starter(engine: Engine, settings: Settings) -> None:
    """Add the starter dataset and model if they are missing, and queue the speed measurement."""
    with unit_of_work(engine) as db:
        starter_dataset.get_or_create(db, settings.datasets)
        starter_model.ensure(db, settings.models)
        workers.enqueue_speed_measurement(db, detect())


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
