"""The studio of this machine, for commands that need no server."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from studio.services.operations import home
from studio.settings import Settings


@contextmanager
def open_home() -> Iterator[tuple[Settings, Engine]]:
    """Open the home of this machine's studio, whether or not it is running."""
    settings = Settings()
    engine = home.open_home(settings)
    try:
        yield settings, engine
    finally:
        engine.dispose()
