"""A home on PostgreSQL for each test here, wherever the server is installed."""

import pytest

from tests.support import template_homes
from tests.support.postgres_server import Server
from tests.support.template_homes import TemplateHome

postgres = template_homes.postgres
settings = template_homes.settings


@pytest.fixture(scope="session")
def furnished(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> TemplateHome:
    """Furnish a home whose database is on the server."""
    return template_homes.furnish(tmp_path_factory.mktemp("furnished") / "home", postgres)
