"""A folder and a database for each test; nothing clever."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.intake.files import limits
from studio.services.operations import home
from studio.settings import Settings
from tests.support import postgres_server, template_homes
from tests.support.postgres_server import Server
from tests.support.template_homes import TemplateHome
from tests.tools import due_tests

pytest_plugins = [
    "tests.fakes.hub_server",
    "tests.support.live_studio",
    "tests.fakes.message_receivers",
    "tests.fakes.file_server",
]

# Rings run beside each other, and each trains: threads that wait must not hold the cores. Torch
# reads it when it is loaded, here and in every process that a test starts.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Of models this small one thread makes as many steps as two, for a sixth less of the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests that run a model are not about what follows: those of evaluations switch it on.
os.environ.setdefault("STUDIO_EVALUATE_RUNS", "false")
# Hundreds of processes are started, and each would compile what it imports; so would this one.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# CPU time grows on a busy machine; it must not decide whether a request or a task reads a file.
limits.MAX_REQUEST_SECONDS *= 10

# A shell's jobs in the background ignore Ctrl-C, and so would everything that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run tests that are not due, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    due_tests.deselect(config, items)


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
    return template_homes.furnish(tmp_path_factory.mktemp("furnished") / "home", server)


@pytest.fixture
def settings(furnished: TemplateHome, tmp_path: Path) -> Iterator[Settings]:
    """Give each test its own studio with a model and a data set to name, and one slot."""
    made = furnished.copy(tmp_path / "home", allowed_hosts="testserver,127.0.0.1", slots=1)
    yield made
    furnished.drop(made)


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = home.open_home(settings)
    yield engine
    engine.dispose()


@pytest.fixture
def db(engine: Engine) -> Iterator[Session]:
    with unit_of_work(engine) as session:
        yield session
