"""A folder and a database for each test; nothing clever."""

import os
import shutil
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
from tests.support import factories
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
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder as a fresh studio has it, migrated once for all tests."""
    folder = tmp_path_factory.mktemp("furnished") / "home"
    settings = Settings(home=folder)
    engine = home.open_home(settings)
    with unit_of_work(engine) as db:
        factories.add_starter_data(db, settings)
    engine.dispose()
    return folder


@pytest.fixture
def settings(furnished: Path, tmp_path: Path) -> Settings:
    """Give each test its own studio with a model and a data set to name, and one slot."""
    shutil.copytree(furnished, tmp_path / "home")
    return Settings(home=tmp_path / "home", allowed_hosts="testserver,127.0.0.1", slots=1)


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = home.open_home(settings)
    yield engine
    engine.dispose()


@pytest.fixture
def db(engine: Engine) -> Iterator[Session]:
    with unit_of_work(engine) as session:
        yield session
