"""The folder where a studio keeps everything: locked, migrated and furnished before it is used."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, event
from sqlmodel import select

from studio.db import migrate
from studio.db.session import connect, unit_of_work
from studio.db.tables import Model
from studio.errors import UnavailableError
from studio.hardware import POLITE, detect
from studio.services import datasets, layouts, models, restores, starters, summaries, trash
from studio.services.locks import Share, usable
from studio.settings import Settings, without_secrets

STARTER = "starter"
BUILDER = (sys.executable, "-m", "studio.training.starter")

Say = Callable[[str], None]


def open_home(settings: Settings) -> Engine:
    """Make the folder if it is missing, and bring its database to the present version.

    The home is shared until the engine is disposed of, so nobody can replace it meanwhile.

    Raises:
        ConflictError: it must be upgraded, and another studio uses it.
        UnavailableError: the folder cannot be written, or a newer studio wrote the database.

    """
    share = Share(settings.home)
    engine = connect(settings.database)
    event.listen(engine, "engine_disposed", lambda _engine: share.close())
    try:
        _make_usable(engine, settings, share)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _make_usable(engine: Engine, settings: Settings, share: Share) -> None:
    if restores.is_cut_off(settings.home):
        with share.alone():
            restores.finish(settings.home)
    with usable(settings.home):
        for folder in (settings.runs, settings.datasets, settings.models):
            folder.mkdir(mode=0o700, exist_ok=True)
    if migrate.is_behind(engine):
        # Another may have done it by the time that this one is alone.
        with share.alone():
            migrate.upgrade(engine)
    if layouts.is_old(engine):
        with share.alone():
            layouts.renew(engine, settings.datasets)
    summaries.catch_up(engine)
    with unit_of_work(engine) as db:
        models.keep_inside(db, settings.home)
        models.look_again(db)


def tidy(engine: Engine, settings: Settings) -> None:
    """Clear away what a killed web process left half done. The next one may: it has the lock."""
    restores.tidy(settings.home)
    with unit_of_work(engine) as db:
        datasets.tidy(db, settings.datasets)
        models.tidy(db, settings.models)
        trash.empty(db, settings.runs)


def furnish(engine: Engine, settings: Settings, say: Say) -> None:
    """Add the starter data set and model where they are missing; the model takes some seconds."""
    with unit_of_work(engine) as db:
        starters.add(db, settings.datasets)
        known = db.exec(select(Model).where(Model.name == STARTER)).first()
    folder = settings.models / STARTER
    if known and (folder / "config.json").exists():
        return
    if not detect().torch:
        say("The training packages are missing: pip install 'mantissa-studio[train]'")
        return
    if not (folder / "config.json").exists():
        say("Making the starter model, once. This takes about 20 seconds.")
        _build(folder)
    if known:
        return
    with unit_of_work(engine) as db:
        models.add(db, STARTER, str(folder), kind=STARTER)


def _build(folder: Path) -> None:
    built = subprocess.run(  # noqa: S603 -- our own interpreter, our own path
        [*BUILDER, str(folder)],
        env=POLITE | without_secrets(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        last = (built.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UnavailableError(
            f"The starter model could not be made: {last}", hint="Run `studio doctor`."
        )
