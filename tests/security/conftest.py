"""A studio for a whole file of tests: what is sent there changes nothing that another needs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from studio.db.session import unit_of_work
from studio.services.operations.home import open_home
from studio.settings import Settings
from studio.web.app import create_app
from tests.security.raw_requests import Target
from tests.support.factories import make_finished_run


@pytest.fixture(scope="module")
def place(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Return a studio with a run that is done, which has a file and a log."""
    folder = tmp_path_factory.mktemp("security") / "home"
    shutil.copytree(furnished, folder)
    settings = Settings(home=folder, allowed_hosts="testserver,127.0.0.1")
    engine = open_home(settings)
    with unit_of_work(engine) as db:
        make_finished_run(db)
    files = settings.runs / "1" / "artifacts"
    files.mkdir(parents=True)
    (files / "adapter.json").write_text("{}")
    app = create_app(engine, settings)
    yield Target(app, engine, settings, TestClient(app, follow_redirects=False))
    engine.dispose()
