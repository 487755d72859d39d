"""Words sought in texts, whatever the case of their plain letters."""

import re
from typing import Any

from sqlalchemy import Boolean, SQLColumnExpression
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class ContainsText(FunctionElement[bool]):
    """Whether a text is like a pattern, in which a slash escapes."""

    name = "holds"
    type = Boolean()
    inherit_cache = True


def contains_text(text: SQLColumnExpression[Any], words: str) -> ContainsText:
    """Say that a text has words in it."""
    return ContainsText(text, "%" + re.sub(r"([/%_])", r"/\1", words) + "%")


@compiles(ContainsText)
def _standard(holds: ContainsText, compiler: SQLCompiler, **given: Any) -> str:  # noqa: ANN401 -- handed on
    text, pattern = (compiler.process(part, **given) for part in holds.clauses)
    return f"(lower({text}) LIKE lower({pattern}) ESCAPE '/')"


@compiles(ContainsText, "sqlite")
def _sqlite(holds: ContainsText, compiler: SQLCompiler, **given: Any) -> str:  # noqa: ANN401 -- handed on
    # Its LIKE and its lower() know the same letters, and lower() takes as long again.
    text, pattern = (compiler.process(part, **given) for part in holds.clauses)
    return f"({text} LIKE {pattern} ESCAPE '/')"
