"""A studio's home that is furnished once and copied for each test, with its database."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.db.session import unit_of_work
from studio.services.operations import home
from studio.settings import Settings
from tests.support import factories
from tests.support.postgres_server import Server


@dataclass(frozen=True, slots=True)
class TemplateHome:
    folder: Path
    server: Server | None = None
    """The server of its database; without one, the database is a file in the folder."""
    database: str = ""

    def settings(self) -> Settings:
        return self._settings(self.folder, self.database, {})

    def copy(self, to: Path, **given: Any) -> Settings:  # noqa: ANN401 -- any setting
        """Copy the folder and the database."""
        shutil.copytree(self.folder, to)
        name = self.server.create(self.database) if self.server else ""
        return self._settings(to, name, given)

    def drop(self, settings: Settings) -> None:
        """Delete the database of a copy."""
        if self.server:
            self.server.drop(self.server.name(settings.database.get_secret_value()))

    def _settings(self, folder: Path, name: str, given: dict[str, Any]) -> Settings:
        url = self.server.url(name) if self.server else ""
        return Settings(home=folder, database=url, **given)


def furnish(folder: Path, server: Server | None = None) -> TemplateHome:
    """Make a home as a fresh studio has it, with a model and a data set to name."""
    made = TemplateHome(folder, server, server.create() if server else "")
    settings = made.settings()
    engine = home.open_home(settings)
    with unit_of_work(engine) as db:
        factories.add_starter_data(db, settings)
    engine.dispose()
    return made
