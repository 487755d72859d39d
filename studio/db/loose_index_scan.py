"""The different values of a column, where rows are many and values few."""

from typing import Any

from sqlalchemy import ColumnElement, Select, SQLColumnExpression, func, select


def distinct_values(column: SQLColumnExpression[Any], *where: ColumnElement[bool]) -> Select[Any]:
    """Select each value of a column once, in order; None at the end.

    One is looked up after the other: an index that begins with the column is hardly read.
    """
    first = select(func.min(column).label("value")).where(*where).cte(recursive=True)
    further = select(func.min(column)).where(column > first.c.value, *where)
    chain = first.union_all(
        select(further.scalar_subquery()).select_from(first).where(first.c.value.is_not(None))
    )
    return select(chain.c.value)
