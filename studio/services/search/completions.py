"""Complete a query at the cursor: field names, operators and the values that runs have."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from sqlmodel import Session, col, select

from studio.db.tables import Run
from studio.services.metrics import metric_summaries
from studio.services.runs import tags_notes
from studio.services.search import query_fields, query_filters, query_parser
from studio.services.search.query_fields import Field

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
    term = query_parser.partial_term_at(query, position)
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
    db: Session, term: query_parser.PartialTerm, metric_keys: Sequence[str]
) -> Iterator[Suggestion]:
    field = query_fields.find(term.field, metric_keys)
    if field is None:
        values: Iterable[str] = query_filters.FLAGS.get(term.field, ())
    else:
        values = _known_values(db, field, term.word)
    return (
        Suggestion(query_parser.quote(value))
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
    """Return names that match a word in the name or its title; prefix matches come first."""
    sought = word.lower()

    def rank(name: str) -> int:
        if name.lower().startswith(sought):
            return 0
        if sought in name.lower():
            return 1
        return 2 if sought in besides(name).lower() else 3

    ranked = [(rank(name), name) for name in candidates]
    return [name for number in range(3) for match_rank, name in ranked if match_rank == number]
