"""Search for words in text columns, ignoring the case of ASCII letters."""

import re
from typing import Any

from sqlalchemy import Boolean, SQLColumnExpression
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class ContainsText(FunctionElement[bool]):
    """Whether a text matches a LIKE pattern with `/` as escape character."""

    name = "holds"
    type = Boolean()
    inherit_cache = True


def contains_text(text: SQLColumnExpression[Any], words: str) -> ContainsText:
    """Return the condition that a text contains the words."""
    return ContainsText(text, "%" + re.sub(r"([/%_])", r"/\1", words) + "%")


@compiles(ContainsText)
def _standard(element: ContainsText, compiler: SQLCompiler, **kwargs: Any) -> str:  # noqa: ANN401 -- SQLAlchemy's signature
    text, pattern = (compiler.process(part, **kwargs) for part in element.clauses)
    return f"(lower({text}) LIKE lower({pattern}) ESCAPE '/')"


@compiles(ContainsText, "sqlite")
def _sqlite(element: ContainsText, compiler: SQLCompiler, **kwargs: Any) -> str:  # noqa: ANN401 -- SQLAlchemy's signature
    # SQLite's LIKE ignores the case of the same letters as lower(), which would double the time.
    text, pattern = (compiler.process(part, **kwargs) for part in element.clauses)
    return f"({text} LIKE {pattern} ESCAPE '/')"
