"""Durations computed in SQL, in the dialect of each database."""

from typing import Any

from sqlalchemy import Float, FunctionElement
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped
from sqlalchemy.sql.compiler import SQLCompiler


class seconds_between(FunctionElement[float]):  # noqa: N801 -- called as a function
    """Seconds between two time columns; 0 if the clock was set back in between."""

    type = Float()
    inherit_cache = True
    name = "seconds_between"

    def __init__(self, start: Mapped[Any], end: Mapped[Any]) -> None:
        super().__init__(start, end)


@compiles(seconds_between)
def _standard(element: seconds_between, compiler: SQLCompiler, **kwargs: Any) -> str:  # noqa: ANN401 -- SQLAlchemy's signature
    start, end = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"GREATEST(EXTRACT(EPOCH FROM {end} - {start}), 0)"


@compiles(seconds_between, "sqlite")
def _sqlite(element: seconds_between, compiler: SQLCompiler, **kwargs: Any) -> str:  # noqa: ANN401 -- SQLAlchemy's signature
    start, end = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"max((julianday({end}) - julianday({start})) * 86400, 0.0)"
