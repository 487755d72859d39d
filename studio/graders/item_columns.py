"""Which columns of a row a grader reads."""

from collections.abc import Iterator

from studio.graders import programs
from studio.graders.schema import (
    Grader,
    LabelModelGrader,
    PythonGrader,
    ScoreModelGrader,
    SingleGrader,
    single_graders,
)
from studio.graders.templates import item_keys

_COMPARING = ("equal", "number")
"""The studio's programs that read a column; what other programs read is unknown."""


def list_item_columns(grader: Grader) -> list[str]:
    """Return the columns that a grader reads, as far as is known, each once."""
    names = (name for _path, one in single_graders(grader) for name in _read(one))
    return list(dict.fromkeys(names))


def _read(grader: SingleGrader) -> Iterator[str]:
    if isinstance(grader, PythonGrader):
        values = (programs.read_values(name, grader.source) for name in _COMPARING)
        paths = [found["path"] for found in values if found]
        yield from (path[0] for path in paths if path and isinstance(path[0], str))
        return
    if isinstance(grader, ScoreModelGrader | LabelModelGrader):
        texts = [message.template for message in grader.input]
    else:
        texts = [grader.input, grader.reference]
    for text in texts:
        yield from item_keys(text)
