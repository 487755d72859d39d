"""The folder: clear words when it cannot be used, and the same studio wherever it is moved."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from studio.db.session import open_engine, read_session
from studio.errors import UnavailableError
from studio.services.models import models
from studio.services.operations import home
from studio.settings import Settings


def test_home_that_is_file_is_rejected_with_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError) as refused:
        home.open_home(Settings(home=tmp_path / "file"))

    assert refused.value.hint == "Choose another folder with STUDIO_HOME."


def stored(engine: Engine) -> str:
    """Return where the starter is, as it stands in the file."""
    with engine.connect() as connection:
        found: str = connection.execute(text("SELECT location FROM model")).scalar_one()
    return found


def location(engine: Engine) -> str:
    with read_session(engine) as db:
        return models.require(db, "starter")


def test_model_inside_home_is_found_after_move(engine: Engine, settings: Settings) -> None:
    assert stored(engine) == "./models/starter"
    engine.dispose()
    moved = settings.home.replace(settings.home.with_name("moved"))

    assert location(open_engine(moved / "studio.db")) == str(moved / "models" / "starter")


@pytest.mark.parametrize("is_moved", [False, True], ids=["in its place", "moved since"])
def test_absolute_model_path_is_migrated_to_relative(
    engine: Engine, settings: Settings, *, is_moved: bool
) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE model SET location = :whole"),
            {"whole": str(settings.models / "starter")},
        )
    engine.dispose()
    folder = settings.home
    if is_moved:
        folder = settings.home.replace(settings.home.with_name("moved"))
    engine = home.open_home(Settings(home=folder))

    assert stored(engine) == "./models/starter"
    assert location(engine) == str(folder / "models" / "starter")
    engine.dispose()


def test_model_outside_home_keeps_absolute_path(engine: Engine, tmp_path: Path) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE model SET location = :whole"), {"whole": str(tmp_path / "models" / "x")}
        )
    assert location(engine) == str(tmp_path / "models" / "x")


def test_damaged_database_is_reported(settings: Settings) -> None:
    shutil.copyfile(__file__, settings.database_file)
    with pytest.raises(UnavailableError) as refused:
        home.open_home(settings)

    assert refused.value.message == "The database is damaged."
