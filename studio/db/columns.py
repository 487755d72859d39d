"""Columns that hold what a plain column cannot: validated JSON, and times that keep their zone."""

import json
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import JSON, DateTime, Dialect
from sqlalchemy.types import TypeDecorator

T = TypeVar("T")


class Validated(TypeDecorator[T]):
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


class Instant(TypeDecorator[datetime]):
    """A moment in UTC. SQLite forgets the zone; this puts it back."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 -- the signature is SQLAlchemy's
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 -- the signature is SQLAlchemy's
        return None if value is None else value.replace(tzinfo=UTC)
