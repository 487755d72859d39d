"""Parse a query, and translate it into SQL conditions that work on any database."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from operator import eq, ge, gt, le, lt
from typing import Any

from sqlalchemy import JSON, ColumnElement, String, and_, cast, false, func, or_, type_coerce
from sqlmodel import col, select

from studio.db.sql_functions import contains_text
from studio.db.states import LIVE, RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Run
from studio.errors import InvalidError
from studio.services.search import query_fields
from studio.services.search.query_fields import Field

MAX_TERMS = 30
"""Each term is a part of one SQL statement, which limits their number."""

_FIELD = re.compile(r"([A-Za-z_#][\w.#]*)(>=|<=|!=|[:=<>])")
_QUOTED = re.compile(r'"([^"]*)"')
_BARE = re.compile(r'[^\s"]+')
_SPACE = re.compile(r"\s*")


class QueryError(InvalidError):
    """A query that cannot be parsed, and the position of the error."""

    def __init__(self, message: str, start: int, end: int, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, param="q")
        self.start, self.end = start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of a query; a run must match all of them."""

    start: int
    end: int
    field: str = ""
    """Empty for text to find in names and notes."""
    sign: str = ":"
    values: tuple[str, ...]
    """Any of them matches."""
    negated: bool = False


def parse(query: str) -> list[Term]:
    """Split a query into its terms.

    Raises:
        QueryError: A quotation is not closed, a field has no value, or there are too many
            terms.

    """
    terms: list[Term] = []
    position = _skip_space(query, 0)
    while position < len(query):
        term = _read_term(query, position)
        terms.append(term)
        position = _skip_space(query, term.end)
    if len(terms) > MAX_TERMS:
        last = terms[MAX_TERMS]
        raise QueryError(f"A query can have at most {MAX_TERMS} terms.", last.start, len(query))
    return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTerm:
    """What is being typed at the cursor."""

    start: int
    """Where the word being typed starts: a field's name, or the value after its operator."""
    end: int
    word: str
    """The part of it before the cursor."""
    field: str = ""
    """The field whose value it is; empty while it is a name or text to search for."""


def partial_term_at(query: str, position: int) -> PartialTerm:
    """Return what is being typed at a position, even if the query is not valid."""
    start = _piece_start(query, position, str.isspace)
    start += query[start : start + 1] == "-"
    field = _FIELD.match(query[:position], start)
    if field is None:
        rest = re.match(r"[\w.#]*[:=<>!]*", query[position:])
        return _partial_term(query, start, position, rest)
    begin = max(field.end(), _piece_start(query, position, ",".__eq__))
    rest = re.match(r'[^\s",]*"?', query[position:])
    partial = _partial_term(query, begin, position, rest)
    return replace(partial, field=field.group(1), word=partial.word.removeprefix('"'))


def remove_term(query: str, term: Term) -> str:
    """Return the query without one of its terms."""
    return " ".join((query[: term.start] + query[term.end :]).split())


def quote(value: str) -> str:
    """Quote a value so that it parses back to itself; values contain no quotation marks."""
    plain = re.fullmatch(r"[\w.#/+-]+", value) and not value.startswith("-")
    return value if plain else '"' + value.replace('"', "") + '"'


def _piece_start(query: str, position: int, is_separator: Callable[[str], bool]) -> int:
    """Return where the piece at a position starts; quoted separators do not count."""
    start, is_quoted = 0, False
    for i, character in enumerate(query[:position]):
        is_quoted ^= character == '"'
        if is_separator(character) and not is_quoted:
            start = i + 1
    return start


def _partial_term(query: str, start: int, position: int, rest: re.Match[str] | None) -> PartialTerm:
    return PartialTerm(
        start=start, end=position + (rest.end() if rest else 0), word=query[start:position]
    )


def _read_term(query: str, start: int) -> Term:
    negated = query[start] == "-" and start + 1 < len(query) and not query[start + 1].isspace()
    position = start + negated
    field = _FIELD.match(query, position)
    if field is None:
        values, end = _read_values(query, position)
        return Term(start=start, end=end, values=values, negated=negated)
    name, sign = field.groups()
    if field.end() == len(query) or query[field.end()].isspace():
        hint = "Write it without a space, e.g. status:failed or eval_loss<0.5."
        raise QueryError(f"{field[0]} needs a value.", start, field.end(), hint=hint)
    values, end = _read_values(query, field.end(), is_list=sign in {":", "=", "!="})
    differs = sign == "!="
    return Term(
        start=start,
        end=end,
        field=name,
        sign="=" if differs else sign,
        values=values,
        negated=negated != differs,
    )


def _read_values(
    query: str, position: int, *, is_list: bool = False
) -> tuple[tuple[str, ...], int]:
    """Read one value, or several separated by commas; return them and the end position."""
    values: list[str] = []
    while True:
        part, position = _read_value(query, position)
        values.extend(_split_commas(part) if is_list and part[:1] != '"' else [part.strip('"')])
        if not (
            is_list and query[position - 1 : position + 1] in {',"', '",'} and position < len(query)
        ):
            return tuple(values), position
        position += query[position] == ","


def _read_value(query: str, position: int) -> tuple[str, int]:
    if query[position : position + 1] == '"':
        quotation = _QUOTED.match(query, position)
        if quotation is None:
            raise QueryError("This quotation is not closed.", position, len(query))
        return quotation.group(), quotation.end()
    bare = _BARE.match(query, position)
    return (bare.group(), bare.end()) if bare else ("", position)


def _split_commas(part: str) -> list[str]:
    return [value for value in part.split(",") if value]


def _skip_space(query: str, position: int) -> int:
    space = _SPACE.match(query, position)
    return space.end() if space else position


Condition = ColumnElement[bool]

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ":": eq,
    "=": eq,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}

_NO_TAGS = "[]"
_ARCHIVED, _TRASHED = col(Run.archived_at).is_not(None), col(Run.deleted_at).is_not(None)

_IS_FLAGS: dict[str, Condition] = {
    "archived": _ARCHIVED,
    "trashed": _TRASHED,
    "live": col(Run.status).in_(LIVE),
    "waiting": col(Run.status).in_((RunStatus.QUEUED, RunStatus.PAUSED)),
    "held": col(Run.is_held).is_(True),
}
_HAS_FLAGS: dict[str, Condition] = {
    "notes": col(Run.notes) != "",
    "tags": cast(col(Run.tags), String) != _NO_TAGS,
    "error": col(Run.error_code) != "",
    "nan": col(Run.id).in_(select(MetricSummary.run_id).where(col(MetricSummary.broken) > 0)),
}
FLAGS = {"is": _IS_FLAGS, "has": _HAS_FLAGS}
"""Fields whose values are flags of a run: `is:archived`, `has:notes`."""

_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([a-z%]*)", re.IGNORECASE)
_UNITS = {"": 1.0, "%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_DURATION_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MOMENT = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")


def build_conditions(query: str, metric_keys: Collection[str]) -> list[Condition]:
    """Return the conditions of a query. Archived and trashed runs are found only if named.

    `metrics` are the metrics that runs have reported.

    Raises:
        QueryError: The query is not valid; the error has the position.

    """
    terms = parse(query)
    named_flags = {value for term in terms if term.field == "is" for value in term.values}
    hidden = [("archived", _ARCHIVED), ("trashed", _TRASHED)]
    # The trash includes runs that were archived before they were trashed.
    included = {"archived", "trashed"} if "trashed" in named_flags else named_flags
    conditions = [~condition for name, condition in hidden if name not in included]
    return [*conditions, *(_term_condition(term, metric_keys) for term in terms)]


def group_term(field: Field, value: object) -> str:
    """Return the term that finds the runs of a group: those whose field equals the value."""
    if value is None:
        return f"-{field.name}:*"
    if isinstance(value, bool):
        return f"{field.name}:{'yes' if value else 'no'}"
    sign = "=" if field.kind == "words" else ":"
    return f"{field.name}{sign}{quote(f'{value:g}' if isinstance(value, float) else str(value))}"


def _term_condition(term: Term, metric_keys: Collection[str]) -> Condition:
    if not term.field:
        condition = _word_condition(term.values[0])
    elif term.field in FLAGS:
        condition = or_(*(_flag_condition(term, value) for value in term.values))
    else:
        field = _require_field(term, metric_keys)
        if not term.values:
            raise _query_error(term, f"{term.field + term.sign} needs a value.")
        condition = or_(*(_field_condition(field, term, value) for value in term.values))
    # NULL counts as false, so the negation finds runs without this metric.
    return ~func.coalesce(condition, false()) if term.negated else condition


def _word_condition(value: str) -> Condition:
    if re.fullmatch(r"#\d{1,15}", value):
        return col(Run.id) == int(value[1:])
    return or_(contains_text(col(Run.name), value), contains_text(col(Run.notes), value))


def _flag_condition(term: Term, value: str) -> Condition:
    flags = FLAGS[term.field]
    if term.sign not in {":", "="} or value not in flags:
        hint = f"Use one of {', '.join(f'{term.field}:{flag}' for flag in flags)}."
        raise _query_error(term, f"{term.field + term.sign + value} is not a valid filter.", hint)
    return flags[value]


def _require_field(term: Term, metric_keys: Collection[str]) -> Field:
    field = query_fields.find(term.field, metric_keys)
    if field is not None and field.kind != "curve":
        return field
    suggestions = get_close_matches(
        term.field, [*query_fields.list_names(metric_keys), *FLAGS], n=1, cutoff=0.6
    )
    hint = "To search for the text itself, put it in quotation marks."
    if suggestions:
        hint = f"Did you mean {suggestions[0]}? {hint}"
    raise _query_error(term, f"There is no field named {term.field}.", hint)


def _field_condition(field: Field, term: Term, value: str) -> Condition:
    if value == "*" and term.sign in {":", "="}:
        return query_fields.build_condition(field, lambda column: column.is_not(None))
    by_kind = {
        "words": _text_condition,
        "choice": _choice_condition,
        "tags": _tag_condition,
        "flag": _bool_condition,
    }
    if field.kind in by_kind and term.sign not in {":", "="}:
        raise _query_error(term, f"{term.field} is not a number, so only : and = work.")
    if field.kind in by_kind:
        return by_kind[field.kind](field, term, value)
    if field.kind == "moment":
        return _moment_condition(field, term, value)
    return query_fields.build_condition(
        field, partial(_compare_number, term.sign, _parse_number(field, term, value))
    )


def _compare_number(sign: str, number: float, column: Any) -> Any:  # noqa: ANN401 -- a column of any type
    return OPERATORS[sign](column, number)


def _text_condition(field: Field, term: Term, value: str) -> Condition:
    if term.sign == "=":
        equal: Condition = field.value == value
        return equal
    return field.value.icontains(value, autoescape=True)


def _choice_condition(field: Field, term: Term, value: str) -> Condition:
    choices = {choice.lower(): choice for choice in field.choices}
    if value.lower() not in choices:
        hint = f"Use one of {', '.join(field.choices)}."
        raise _query_error(term, f"{term.field} cannot be {value}.", hint)
    equal: Condition = field.value == choices[value.lower()]
    return equal


def _tag_condition(_field: Field, _term: Term, value: str) -> Condition:
    # Compare JSON as text: functions on its elements differ between databases.
    tags_text = cast(type_coerce(col(Run.tags), JSON), String)
    return tags_text.icontains(json.dumps(value), autoescape=True)


def _bool_condition(field: Field, term: Term, value: str) -> Condition:
    values = {"yes": True, "true": True, "no": False, "false": False}
    if value.lower() not in values:
        raise _query_error(term, f"{term.field} is yes or no, not {value}.")
    equal: Condition = field.value == values[value.lower()]
    return equal


def _parse_number(field: Field, term: Term, value: str) -> float:
    amount = _AMOUNT.fullmatch(value)
    units: Mapping[str, float] = _DURATION_UNITS if field.kind == "span" else _UNITS
    unit = amount.group(2).lower() if amount else "?"
    if field.kind == "span":
        unit = unit or "s"
    if amount is None or unit not in units:
        example = "90s, 5min, 2h or 3d" if field.kind == "span" else "0.5, 1e-4, 20k or 8GB"
        raise _query_error(
            term, f"{value} is not a number.", f"Write {term.field + term.sign + example}."
        )
    return float(amount.group(1)) * units[unit]


def _moment_condition(field: Field, term: Term, value: str) -> Condition:
    start, end = _parse_period(term, value)
    column = field.value
    if term.sign in {":", "="}:
        return and_(column >= start, column < end)
    return OPERATORS[term.sign](column, end if term.sign in {">", "<="} else start)  # type: ignore[no-any-return] # a comparison of columns


def _parse_period(term: Term, value: str) -> tuple[datetime, datetime]:
    """Return the start and end of a year, month or day; `7d` starts that long ago."""
    amount = _AMOUNT.fullmatch(value)
    now = datetime.now(UTC)
    try:
        if amount and amount.group(2).lower() in _DURATION_UNITS:
            ago = timedelta(
                seconds=float(amount.group(1)) * _DURATION_UNITS[amount.group(2).lower()]
            )
            return now - ago, now if term.sign in {":", "="} else now - ago
        if value == "today":
            start = now.replace(hour=0, minute=0, second=0, microsecond=0)
            return start, start + timedelta(days=1)
        if dated := _MOMENT.fullmatch(value):
            return _calendar_period(*(int(part) if part else None for part in dated.groups()))
    except (ValueError, OverflowError):
        pass
    hint = f"Write {term.field + term.sign}2026-11-01, 2026-11, today, or 7d for a week ago."
    raise _query_error(term, f"{value} is not a date.", hint)


def _calendar_period(
    year: int | None, month: int | None, day: int | None
) -> tuple[datetime, datetime]:
    start = datetime(year or 0, month or 1, day or 1, tzinfo=UTC)
    if day:
        return start, start + timedelta(days=1)
    if month:
        return start, (start + timedelta(days=32)).replace(day=1)
    return start, start.replace(year=start.year + 1)


def _query_error(term: Term, message: str, hint: str = "") -> QueryError:
    return QueryError(message, term.start, term.end, hint=hint)


def parse_or_empty(query: str) -> Sequence[Term]:
    """Return the terms to show one by one; none if the query is not valid."""
    try:
        return parse(query)
    except QueryError:
        return ()
