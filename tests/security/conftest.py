"""A studio for a whole file of tests: what is sent there changes nothing that another needs."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from studio.db.session import unit_of_work
from studio.services.operations.home import open_home
from studio.web.app import create_app
from tests.security.raw_requests import Target
from tests.support.factories import make_finished_run
from tests.support.template_homes import TemplateHome


@pytest.fixture(scope="module")
def place(furnished: TemplateHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Return a studio with a run that is done, which has a file and a log."""
    folder = tmp_path_factory.mktemp("security") / "home"
    settings = furnished.copy(folder, allowed_hosts="testserver,127.0.0.1")
    engine = open_home(settings)
    with unit_of_work(engine) as db:
        make_finished_run(db)
    files = settings.runs / "1" / "artifacts"
    files.mkdir(parents=True)
    (files / "adapter.json").write_text("{}")
    app = create_app(engine, settings)
    yield Target(app, engine, settings, TestClient(app, follow_redirects=False))
    engine.dispose()
