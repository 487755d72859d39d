"""Detect new commits to the database; a check costs microseconds."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Engine
from sqlalchemy.engine.interfaces import DBAPICursor


class CommitWatcher:
    """Detects commits of all connections except its own, which must never write."""

    def __init__(self, cursor: DBAPICursor) -> None:
        self._cursor = cursor
        self._last: object = None

    def has_new_commit(self) -> bool:
        """Whether there was a commit since the last call; true on the first call."""
        self._cursor.execute("PRAGMA data_version")
        before, self._last = self._last, self._cursor.fetchone()
        return self._last != before


@contextmanager
def watch_commits(engine: Engine) -> Iterator[CommitWatcher]:
    """Watch a database over a dedicated connection."""
    # A raw driver connection, because a session would start a transaction, which keeps seeing the
    # same snapshot of the database.
    with closing(engine.raw_connection()) as connection:
        yield CommitWatcher(connection.cursor())
