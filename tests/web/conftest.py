"""A client for each test: the whole web process but its socket."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.settings import Settings
from studio.web.app import create_app


@pytest.fixture
def client(engine: Engine, settings: Settings) -> TestClient:
    return TestClient(create_app(engine, settings))
