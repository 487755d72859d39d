"""Translate a query into SQL conditions that work on any database."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
from studio.services.search import query_fields
from studio.services.search.query_fields import Field
from studio.services.search.query_parser import QueryError, Term, parse, quote

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

    `told` are the metrics that runs have reported.

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
            raise _query_error(term, f"{term.field}{term.sign} needs a value.")
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
        raise _query_error(term, f"{term.field}{term.sign}{value} is not a valid filter.", hint)
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
            term, f"{value} is not a number.", f"Write {term.field}{term.sign}{example}."
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
    hint = f"Write {term.field}{term.sign}2026-11-01, 2026-11, today, or 7d for a week ago."
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
