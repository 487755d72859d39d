"""SQL that each database writes differently, and distinct values by a loose index scan."""

import re
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Float,
    FunctionElement,
    Select,
    SQLColumnExpression,
    String,
    func,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped
from sqlalchemy.sql.compiler import SQLCompiler


class seconds_between(FunctionElement[float]):  # noqa: N801 -- called as a function
    """Seconds between two time columns; 0 if the clock was set back in between."""

    type = Float()
    inherit_cache = True
    name = "seconds_between"

    standard = "GREATEST(EXTRACT(EPOCH FROM {1} - {0}), 0)"
    sqlite = "max((julianday({1}) - julianday({0})) * 86400, 0.0)"

    def __init__(self, start: Mapped[Any], end: Mapped[Any]) -> None:
        super().__init__(start, end)


class ContainsText(FunctionElement[bool]):
    """Whether a text matches a LIKE pattern with `/` as escape character, ignoring ASCII case."""

    type = Boolean()
    inherit_cache = True
    name = "holds"

    standard = "(lower({0}) LIKE lower({1}) ESCAPE '/')"
    # SQLite's LIKE ignores the case of the same letters as lower(), which would double the time.
    sqlite = "({0} LIKE {1} ESCAPE '/')"


class json_text(FunctionElement[str]):  # noqa: N801 -- called as a function
    """The text of a JSON column, which can be compared; Postgres cannot compare JSON."""

    type = String()
    inherit_cache = True
    name = "json_text"

    standard = "CAST({0} AS VARCHAR)"
    sqlite = "{0}"  # as it is in an index

    def __init__(self, column: Mapped[Any]) -> None:
        super().__init__(column)


@compiles(seconds_between)
@compiles(ContainsText)
@compiles(json_text)
def _compile(
    element: seconds_between | ContainsText | json_text,
    compiler: SQLCompiler,
    **kwargs: Any,  # noqa: ANN401 -- SQLAlchemy's signature
) -> str:
    template = element.sqlite if compiler.dialect.name == "sqlite" else element.standard
    return template.format(*(compiler.process(clause, **kwargs) for clause in element.clauses))


def contains_text(text: SQLColumnExpression[Any], words: str) -> ContainsText:
    """Return the condition that a text contains the words, ignoring the case of ASCII letters."""
    return ContainsText(text, "%" + re.sub(r"([/%_])", r"/\1", words) + "%")


def distinct_values(
    column: SQLColumnExpression[Any], *conditions: ColumnElement[bool]
) -> Select[Any]:
    """Select each value of a column once, in order; the last row is None.

    Each value is found by one lookup, so only a small part of an index on the column is read.
    """
    first = select(func.min(column).label("value")).where(*conditions).cte(recursive=True)
    next_value = select(func.min(column)).where(column > first.c.value, *conditions)
    chain = first.union_all(
        select(next_value.scalar_subquery()).select_from(first).where(first.c.value.is_not(None))
    )
    return select(chain.c.value)
