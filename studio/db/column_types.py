"""Custom column types: validated JSON, UTC times, paths relative to the home."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Integer,
    MetaData,
    String,
    Table,
    event,
)
from sqlalchemy.types import TypeDecorator
from sqlmodel import SQLModel

T = TypeVar("T")

HOME_DIRS: WeakKeyDictionary[Dialect, Path] = WeakKeyDictionary()
"""The folder of each open database, by dialect, because a column type only gets the dialect."""

HOME_PREFIX = "./"
"""The prefix of paths relative to the home; hub names never start with it."""


class ValidatedJSON(TypeDecorator[T]):
    """A JSON column whose values are validated on write and on read."""

    impl = JSON
    cache_ok = True

    def __init__(self, adapter: TypeAdapter[T]) -> None:
        super().__init__()
        self.adapter = adapter

    def process_bind_param(self, value: T | None, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002 -- the signature is SQLAlchemy's
        # Only `dump_json` turns NaN into a string; Postgres and browsers reject a bare NaN.
        return None if value is None else json.loads(self.adapter.dump_json(value))

    def process_result_value(self, value: Any | None, dialect: Dialect) -> T | None:  # noqa: ANN401, ARG002 -- the signature is SQLAlchemy's
        return None if value is None else self.adapter.validate_python(value, strict=False)


class UTCDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite drops the time zone; this adds it back."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 -- the signature is SQLAlchemy's
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 -- the signature is SQLAlchemy's
        return None if value is None else value.replace(tzinfo=UTC)


class HomePath(TypeDecorator[str]):
    """A folder or a name on the hub. A folder inside the home is stored relative to it.

    This way a home can be moved, copied and restored elsewhere; reading the column returns the
    current absolute path.
    """

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        home = HOME_DIRS[dialect]
        if value is None or not Path(value).is_relative_to(home):
            return value
        return HOME_PREFIX + Path(value).relative_to(home).as_posix()

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or not value.startswith(HOME_PREFIX):
            return value
        return str(HOME_DIRS[dialect] / value)


_INTEGER = Integer().with_variant(BigInteger(), "postgresql")
"""Of 64 bits, which all integers of SQLite have: sizes, tokens and IDs outgrow 32."""


@event.listens_for(Table, "after_parent_attach")
def _widen_integers(table: Table, metadata: MetaData) -> None:
    if metadata is SQLModel.metadata:
        for column in table.columns:
            if type(column.type) is Integer:
                column.type = _INTEGER


def now() -> datetime:
    return datetime.now(UTC)


METRICS_ADAPTER = TypeAdapter(dict[str, float], config=ConfigDict(ser_json_inf_nan="strings"))
"""Metric values by name; NaN and infinity are stored as strings, as JSON cannot represent them."""

AUTOINCREMENT = {"sqlite_autoincrement": True}
"""Without it, SQLite reuses the IDs of deleted rows, but IDs are part of URLs."""
