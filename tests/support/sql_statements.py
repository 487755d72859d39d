"""What is asked of a database while a block goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ClauseElement, Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPICursor, ExecutionContext


@dataclass(frozen=True, slots=True)
class Statement:
    statement: ClauseElement | None
    """None where it was written in SQLite's own words from the start."""
    words: str
    values: Any


@contextmanager
def record_statements(engine: Engine) -> Iterator[list[Statement]]:
    """Gather every statement, as it is meant and as the driver gets it."""
    found: list[Statement] = []

    def note(
        _connection: Connection,
        _cursor: DBAPICursor,
        words: str,
        values: object,
        context: ExecutionContext | None,
        *_rest: object,
    ) -> None:
        compiled = getattr(context, "compiled", None)
        found.append(Statement(compiled.statement if compiled else None, words, values))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)
