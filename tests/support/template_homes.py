"""A studio's home that is furnished once and copied for each test, with its database.

Suites that run on both databases import the fixtures in their `conftest.py`.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from studio.db.session import unit_of_work
from studio.services.operations import home
from studio.settings import Settings
from tests.support import factories, postgres_server
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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Run a PostgreSQL server for all tests of this process that need one."""
    if reason := postgres_server.missing_reason():
        pytest.skip(reason)
    with postgres_server.run_server() as server:
        yield server


@pytest.fixture(scope="session")
def furnished(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> TemplateHome:
    """Make a home as a fresh studio has it, migrated once for all tests."""
    is_asked = postgres_server.VARIABLE in os.environ
    server: Server | None = request.getfixturevalue("postgres") if is_asked else None
    return furnish(tmp_path_factory.mktemp("furnished") / "home", server)


@pytest.fixture
def settings(furnished: TemplateHome, tmp_path: Path) -> Iterator[Settings]:
    """Give each test its own studio with a model and a data set to name, and one slot."""
    made = furnished.copy(tmp_path / "home", allowed_hosts="testserver,127.0.0.1", slots=1)
    yield made
    furnished.drop(made)
