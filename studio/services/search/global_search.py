"""What people have made, found by a piece of its name: for those who go by name, not by menu."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.tables import Dataset, Experiment, Model, Run, Study
from studio.services.runs import runs

Kind = Literal["run", "experiment", "study", "dataset", "model"]

_TABLES: tuple[tuple[Kind, type[Experiment | Study | Dataset | Model]], ...] = (
    ("experiment", Experiment),
    ("study", Study),
    ("dataset", Dataset),
    ("model", Model),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that has a name and a page."""

    kind: Kind
    id: int
    name: str
    about: str
    """What tells it from others of its name."""
    status: str = ""


def find(db: Session, words: str, *, limit: int) -> Iterator[Found]:
    """Yield what is called so, the newest of each kind first, at most `limit` of a kind.

    A number, with or without #, is also a run's. Without words it is simply the newest runs.
    """
    numbered = db.get(Run, int(words.removeprefix("#"))) if _is_number(words) else None
    if numbered is not None:
        yield _run(numbered)
    for run in runs.newest(db, runs.Filter(search=words), limit=limit):
        if run is not numbered:
            yield _run(run)
    if words:
        for kind, table in _TABLES:
            name = col(table.name)
            named = select(table.id, name).where(name.icontains(words, autoescape=True))
            for number, told in db.exec(named.order_by(col(table.id).desc()).limit(limit)):
                yield Found(kind=kind, id=number or 0, name=told, about="")


def _is_number(words: str) -> bool:
    digits = words.removeprefix("#")
    return digits.isdecimal() and len(digits) < 10  # noqa: PLR2004 -- more fit in no key


def _run(run: Run) -> Found:
    about = f"#{run.id}, {run.recipe.precision}"
    return Found(kind="run", id=run.id or 0, name=run.name, about=about, status=run.status)
