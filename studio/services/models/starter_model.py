"""The built-in base model, so that a first run needs no download."""

import shutil
from pathlib import Path

from sqlmodel import Session, select

from studio import files, starter
from studio.db.tables import Model
from studio.services.models import models
from studio.services.storage import atomic_dirs

NAME = "starter"
_STAGE = ".new-starter"


def ensure(db: Session, parent: Path) -> None:
    """Write the model and list it, unless that was done before; an existing one is kept."""
    folder = parent / NAME
    if not (folder / "config.json").exists():
        _write(folder)
    if db.exec(select(Model).where(Model.name == NAME)).first() is None:
        models.add(db, NAME, str(folder), kind=NAME)


def _write(folder: Path) -> None:
    """Write the folder completely or not at all."""
    shutil.rmtree(folder.with_name(_STAGE), ignore_errors=True)  # left by a kill
    with atomic_dirs.staging_dir(folder.parent, _STAGE) as stage:
        starter.write_model(stage)
        files.sync_folder(stage)
        atomic_dirs.move_into_place(stage, folder)
