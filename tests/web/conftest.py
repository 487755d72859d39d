"""A client for each test: the whole web process but its socket."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.settings import Settings
from studio.web.app import create_app
from tests.support import template_homes

furnished = template_homes.furnished
postgres = template_homes.postgres
settings = template_homes.settings


@pytest.fixture
def client(engine: Engine, settings: Settings) -> TestClient:
    return TestClient(create_app(engine, settings))
