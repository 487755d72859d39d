"""Words sought in texts, whatever the case of their plain letters."""

import re
from typing import Any

from sqlalchemy import Boolean, SQLColumnExpression
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class Holds(FunctionElement[bool]):
    """Whether a text is like a pattern, in which a slash escapes."""

    name = "holds"
    type = Boolean()
    inherit_cache = True


def hold(text: SQLColumnExpression[Any], words: str) -> Holds:
    """Say that a text has words in it."""
    return Holds(text, "%" + re.sub(r"([/%_])", r"/\1", words) + "%")


@compiles(Holds)
def _written(holds: Holds, compiler: SQLCompiler, **given: Any) -> str:  # noqa: ANN401 -- handed on
    text, pattern = (compiler.process(part, **given) for part in holds.clauses)
    return f"(lower({text}) LIKE lower({pattern}) ESCAPE '/')"


@compiles(Holds, "sqlite")
def _on_sqlite(holds: Holds, compiler: SQLCompiler, **given: Any) -> str:  # noqa: ANN401 -- handed on
    # Its LIKE and its lower() know the same letters, and lower() takes as long again.
    text, pattern = (compiler.process(part, **given) for part in holds.clauses)
    return f"({text} LIKE {pattern} ESCAPE '/')"
