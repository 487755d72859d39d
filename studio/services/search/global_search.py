"""Global search: find runs, experiments, studies, datasets and models by name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.tables import Dataset, Experiment, Model, Run, Study
from studio.services.runs import runs

HitKind = Literal["run", "experiment", "study", "dataset", "model"]

_TABLES: tuple[tuple[HitKind, type[Experiment | Study | Dataset | Model]], ...] = (
    ("experiment", Experiment),
    ("study", Study),
    ("dataset", Dataset),
    ("model", Model),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """Something with a name and a page."""

    kind: HitKind
    id: int
    name: str
    about: str
    """Tells it apart from others of the same name."""
    status: str = ""


def search(db: Session, query: str, *, limit: int) -> Iterator[SearchHit]:
    """Yield matches by name, the newest of each kind first, at most `limit` of each kind.

    A number, with or without #, also finds the run with that id. An empty query lists the newest
    runs.
    """
    numbered = db.get(Run, int(query.removeprefix("#"))) if _is_number(query) else None
    if numbered is not None:
        yield _run_hit(numbered)
    for run in runs.newest(db, runs.RunFilter(search=query), limit=limit):
        if run is not numbered:
            yield _run_hit(run)
    if query:
        for kind, table in _TABLES:
            name = col(table.name)
            matches = select(table.id, name).where(name.icontains(query, autoescape=True))
            for number, label in db.exec(matches.order_by(col(table.id).desc()).limit(limit)):
                yield SearchHit(kind=kind, id=number or 0, name=label, about="")


def _is_number(query: str) -> bool:
    digits = query.removeprefix("#")
    return digits.isdecimal() and len(digits) < 10  # noqa: PLR2004 -- more digits exceed any id


def _run_hit(run: Run) -> SearchHit:
    about = f"#{run.id}, {run.recipe.precision}"
    return SearchHit(kind="run", id=run.id or 0, name=run.name, about=about, status=run.status)
