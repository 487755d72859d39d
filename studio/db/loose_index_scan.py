"""Distinct values of a column with many rows but few values, by a loose index scan."""

from typing import Any

from sqlalchemy import ColumnElement, Select, SQLColumnExpression, func, select


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
