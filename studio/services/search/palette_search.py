"""Search for the command palette: what has a name, and completions of a query at the cursor."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.summaries import SavedComparison
from studio.db.tables import Dataset, Experiment, Model, Run, Study, Sweep
from studio.services.metrics import metric_summaries
from studio.services.runs import runs, tags_notes
from studio.services.search import query_fields, query_filters
from studio.services.search.query_fields import Field

HitKind = Literal["run", "experiment", "sweep", "study", "comparison", "dataset", "model"]

_NamedTable = type[Experiment | Sweep | Study | SavedComparison | Dataset | Model]
_TABLES: tuple[tuple[HitKind, _NamedTable], ...] = (
    ("experiment", Experiment),
    ("sweep", Sweep),
    ("study", Study),
    ("comparison", SavedComparison),
    ("dataset", Dataset),
    ("model", Model),
)


_WORD_BREAK = re.compile(r"[\W_]+")
_MAX_COMPARED = 500
"""How many names a misspelt one is compared with."""


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


def list_newest(db: Session, kind: HitKind, *, limit: int) -> list[SearchHit]:
    """Return the newest of a kind that are not in the trash, the newest first."""
    if kind == "run":
        return [_run_hit(run) for run in runs.newest(db, runs.RunFilter(), limit=limit)]
    table = dict(_TABLES)[kind]
    newest = select(table.id, table.name).order_by(col(table.id).desc()).limit(limit)
    return [
        SearchHit(kind=kind, id=number or 0, name=name, about=f"#{number}")
        for number, name in db.exec(newest)
    ]


def exists(db: Session, kind: HitKind, number: int) -> bool:
    """Whether something of a kind has this id, in the trash or not."""
    table = Run if kind == "run" else dict(_TABLES)[kind]
    return db.get(table, number) is not None


def list_similar(db: Session, kind: HitKind, name: str, *, limit: int) -> list[SearchHit]:
    """Return what has a name like this one among the newest of a kind, the most similar first."""
    by_name: dict[str, SearchHit] = {}
    for hit in list_newest(db, kind, limit=_MAX_COMPARED):
        by_name.setdefault(hit.name.casefold(), hit)
    sought = name.casefold()
    containing = [other for other in by_name if sought in other]
    names = dict.fromkeys([*get_close_matches(sought, by_name, n=limit), *containing])
    return [by_name[other] for other in names][:limit]


def _is_number(query: str) -> bool:
    digits = query.removeprefix("#")
    return digits.isdecimal() and len(digits) < 10  # noqa: PLR2004 -- more digits exceed any id


def _run_hit(run: Run) -> SearchHit:
    about = f"#{run.id}, {run.recipe.precision}"
    return SearchHit(kind="run", id=run.id or 0, name=run.name, about=about, status=run.status)


MAX_SUGGESTIONS = 10
MAX_VALUES = 200
"""Fields with more values than these are completed by a substring search."""

_NUMBER_SIGNS = {
    "<": "less than",
    ">": "greater than",
    "<=": "at most",
    ">=": "at least",
    ":": "is",
    "!=": "is not",
}
_CHOICE_SIGNS = {":": "is", "!=": "is not"}
_TEXT_SIGNS = {":": "contains", "=": "is exactly", "!=": "is not"}
_FLAG_TITLES = {"is": "state", "has": "property"}
_SAMPLE_DURATIONS = ("10min", "1h", "6h", "1d")


@dataclass(frozen=True, slots=True)
class Suggestion:
    text: str
    """Replaces the word at the cursor."""
    about: str = ""
    is_whole: bool = True
    """Whether it completes the term, so that a new term follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    start: int
    end: int
    """The suggestions replace the query from `start` to here."""
    offers: Sequence[Suggestion]


def complete(db: Session, query: str, position: int) -> Completion:
    """Return completions at a position of a query, best match first."""
    term = query_filters.partial_term_at(query, position)
    metric_keys = metric_summaries.list_keys(db)
    suggestions = (
        _suggest_values(db, term, metric_keys)
        if term.field
        else _suggest_names(term.word, metric_keys)
    )
    return Completion(
        start=term.start, end=term.end, offers=list(islice(suggestions, MAX_SUGGESTIONS))
    )


def _suggest_names(word: str, metric_keys: Sequence[str]) -> Iterator[Suggestion]:
    if not word or word.startswith('"'):
        return
    exact = query_fields.find(word, metric_keys)
    if exact is not None and exact.kind != "curve":
        for sign, title in _signs(exact).items():
            yield Suggestion(f"{word}{sign}", title, is_whole=False)
    names = [*query_filters.FLAGS, *query_fields.list_names(metric_keys)]
    for name in _rank_matches(word, names, lambda name: _title(name, metric_keys)):
        field = query_fields.find(name, metric_keys)
        if name != word and (field is None or field.kind != "curve"):
            sign = ":" if field is None else next(iter(_signs(field)))
            yield Suggestion(f"{name}{sign}", _title(name, metric_keys), is_whole=False)


def _signs(field: Field) -> dict[str, str]:
    if field.kind in {"number", "span", "moment"}:
        return _NUMBER_SIGNS
    return _TEXT_SIGNS if field.kind == "words" else _CHOICE_SIGNS


def _title(name: str, metric_keys: Sequence[str]) -> str:
    field = query_fields.find(name, metric_keys)
    return _FLAG_TITLES.get(name, "") if field is None else field.title


def _suggest_values(
    db: Session, term: query_filters.PartialTerm, metric_keys: Sequence[str]
) -> Iterator[Suggestion]:
    field = query_fields.find(term.field, metric_keys)
    if field is None:
        values: Iterable[str] = query_filters.FLAGS.get(term.field, ())
    else:
        values = _known_values(db, field, term.word)
    return (
        Suggestion(query_filters.quote(value))
        for value in _rank_matches(term.word, values)
        if value.lower() != term.word.lower()
    )


def _known_values(db: Session, field: Field, word: str) -> Iterable[str]:
    match field.kind:
        case "choice":
            return field.choices
        case "flag":
            return ("yes", "no")
        case "tags":
            return tags_notes.known_tags(db)
        case "span":
            return _SAMPLE_DURATIONS
        case "moment":
            return ("today", "1d", "7d", "30d", f"{datetime.now(UTC):%Y-%m}")
    # Metric values hardly repeat, and notes are too long to be suggestions.
    return () if field.key or field.name == "notes" else _used_values(db, field, word)


def _used_values(db: Session, field: Field, word: str) -> list[str]:
    """Return the values that runs have, sorted."""
    query = select(field.value).where(col(Run.deleted_at).is_(None), field.value.is_not(None))
    if field.kind == "words":
        query = query.where(field.value.icontains(word, autoescape=True))
    values = db.exec(query.distinct().order_by(field.value).limit(MAX_VALUES))
    return [
        f"{value:g}" if isinstance(value, float) else str(value) for value in values if value != ""
    ]


def _rank_matches(
    word: str, candidates: Iterable[str], besides: Callable[[str], str] = lambda _name: ""
) -> list[str]:
    """Return names that match a word in the name or its title.

    Names that begin with it come first, then those of which it is a whole word, or a word of the
    title.
    """
    sought = word.lower()

    def rank(name: str) -> int:
        lowered, title = name.lower(), besides(name).lower()
        if lowered.startswith(sought):
            return 0
        if sought in _WORD_BREAK.split(f"{lowered} {title}"):
            return 1
        if sought in lowered:
            return 2
        return 3 if sought in title else 4

    ranked = [(rank(name), name) for name in candidates]
    return [name for number in range(4) for match_rank, name in ranked if match_rank == number]
