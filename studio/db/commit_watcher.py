"""Whether anybody has committed: asked often, because asking costs microseconds."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Engine
from sqlalchemy.engine.interfaces import DBAPICursor


class CommitWatcher:
    """Tells of commits of every connection but its own, which must never write."""

    def __init__(self, cursor: DBAPICursor) -> None:
        self._cursor = cursor
        self._last: object = None

    def has_new_commit(self) -> bool:
        """Whether there was a commit since the last time of asking; true the first time."""
        self._cursor.execute("PRAGMA data_version")
        before, self._last = self._last, self._cursor.fetchone()
        return self._last != before


@contextmanager
def watch_commits(engine: Engine) -> Iterator[CommitWatcher]:
    """Watch a database over a connection kept for that."""
    # The driver's own connection, because a session's begins a transaction, which sees one
    # moment of the database for ever.
    with closing(engine.raw_connection()) as connection:
        yield CommitWatcher(connection.cursor())
