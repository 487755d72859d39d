"""Columns that hold what a plain one cannot: checked JSON, times with a zone, paths that move."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import JSON, DateTime, Dialect, String
from sqlalchemy.types import TypeDecorator

T = TypeVar("T")

HOME_DIRS: WeakKeyDictionary[Dialect, Path] = WeakKeyDictionary()
"""The folder that each open database lies in. A column is told of its dialect and nothing else."""

HOME_PREFIX = "./"
"""How a path relative to the home begins; no name on the hub does."""


class ValidatedJSON(TypeDecorator[T]):
    """A JSON column whose values are checked on the way in and on the way out."""

    impl = JSON
    cache_ok = True

    def __init__(self, adapter: TypeAdapter[T]) -> None:
        super().__init__()
        self.adapter = adapter

    def process_bind_param(self, value: T | None, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002 -- the signature is SQLAlchemy's
        # Only the JSON writer turns NaN into a string; Postgres and browsers refuse a bare NaN.
        return None if value is None else json.loads(self.adapter.dump_json(value))

    def process_result_value(self, value: Any | None, dialect: Dialect) -> T | None:  # noqa: ANN401, ARG002 -- the signature is SQLAlchemy's
        return None if value is None else self.adapter.validate_python(value, strict=False)


class UTCDateTime(TypeDecorator[datetime]):
    """A moment in UTC. SQLite forgets the zone; this puts it back."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 -- the signature is SQLAlchemy's
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 -- the signature is SQLAlchemy's
        return None if value is None else value.replace(tzinfo=UTC)


class HomePath(TypeDecorator[str]):
    """A folder, or a name on the hub. A folder inside the home is kept relative to it.

    So a home can be moved, copied and restored elsewhere; who reads the column gets the path as it
    is today.
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


def now() -> datetime:
    return datetime.now(UTC)


METRICS_ADAPTER = TypeAdapter(dict[str, float], config=ConfigDict(ser_json_inf_nan="strings"))
"""Numbers by name; NaN and infinity are written as strings, for JSON has no word for them."""

AUTOINCREMENT = {"sqlite_autoincrement": True}
"""SQLite gives a deleted row's id to the next one, unless told not to; ours are in addresses."""
