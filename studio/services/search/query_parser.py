"""The language of the search box, as far as its signs go: words, and fields with what they are.

    support tone            both words, in name or notes
    "support tone"          these words as they stand
    status:running,queued   a field that is any of these
    eval_loss<0.5           a number compared
    created>=2026-11-01     a moment compared
    -tag:draft              not what follows

What fields there are, and what they hold, `studio.services.search.query_fields` knows.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from studio.errors import InvalidError

MAX_TERMS = 30
"""More is no question of a person, and each of them is a part of one SQL statement."""

_FIELD = re.compile(r"([A-Za-z_#][\w.#]*)(>=|<=|!=|[:=<>])")
_QUOTED = re.compile(r'"([^"]*)"')
_BARE = re.compile(r'[^\s"]+')
_SPACE = re.compile(r"\s*")


class QueryError(InvalidError):
    """A query that cannot be understood, and where in it that is so."""

    def __init__(self, message: str, start: int, end: int, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, param="q")
        self.start, self.end = start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of a query; a run must match all of them."""

    start: int
    end: int
    field: str = ""
    """Nothing for words that are looked for in name and notes."""
    sign: str = ":"
    values: tuple[str, ...]
    """Any of these will do."""
    negated: bool = False


def parse(query: str) -> list[Term]:
    """Part a query into its terms.

    Raises:
        QueryError: a quotation has no end, a field no value, or there are too many terms.

    """
    found: list[Term] = []
    place = _skip_space(query, 0)
    while place < len(query):
        term = _read_term(query, place)
        found.append(term)
        place = _skip_space(query, term.end)
    if len(found) > MAX_TERMS:
        last = found[MAX_TERMS]
        raise QueryError(f"A query has at most {MAX_TERMS} parts.", last.start, len(query))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTerm:
    """What is being written at a place of a query."""

    start: int
    """Where the word that is written begins: a field's name, or the value after its sign."""
    end: int
    word: str
    """As much of it as stands before the place."""
    field: str = ""
    """Whose value it is; nothing while it is a name, or a word to look for."""


def partial_term_at(query: str, place: int) -> PartialTerm:
    """Return what is being written at a place, whether or not the query can be understood."""
    start = _piece_start(query, place, str.isspace)
    start += query[start : start + 1] == "-"
    field = _FIELD.match(query[:place], start)
    if field is None:
        rest = re.match(r"[\w.#]*[:=<>!]*", query[place:])
        return _partial_term(query, start, place, rest)
    begin = max(field.end(), _piece_start(query, place, ",".__eq__))
    rest = re.match(r'[^\s",]*"?', query[place:])
    found = _partial_term(query, begin, place, rest)
    return replace(found, field=field.group(1), word=found.word.removeprefix('"'))


def remove_term(query: str, term: Term) -> str:
    """Return the query as it is without one of its terms."""
    return " ".join((query[: term.start] + query[term.end :]).split())


def quote(value: str) -> str:
    """Write a value so that it is read back as it is; no value holds a quotation mark."""
    plain = re.fullmatch(r"[\w.#/+-]+", value) and not value.startswith("-")
    return value if plain else '"' + value.replace('"', "") + '"'


def _piece_start(query: str, place: int, parts: Callable[[str], bool]) -> int:
    """Return where the piece at a place begins; what stands in quotation marks parts nothing."""
    start, is_quoted = 0, False
    for i, sign in enumerate(query[:place]):
        is_quoted ^= sign == '"'
        if parts(sign) and not is_quoted:
            start = i + 1
    return start


def _partial_term(query: str, start: int, place: int, rest: re.Match[str] | None) -> PartialTerm:
    return PartialTerm(
        start=start, end=place + (rest.end() if rest else 0), word=query[start:place]
    )


def _read_term(query: str, start: int) -> Term:
    negated = query[start] == "-" and start + 1 < len(query) and not query[start + 1].isspace()
    place = start + negated
    field = _FIELD.match(query, place)
    if field is None:
        values, end = _read_values(query, place)
        return Term(start=start, end=end, values=values, negated=negated)
    name, sign = field.groups()
    if field.end() == len(query) or query[field.end()].isspace():
        hint = "Write it without a space, as in status:failed or eval_loss<0.5."
        raise QueryError(f"After {name}{sign} a value is missing.", start, field.end(), hint=hint)
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


def _read_values(query: str, place: int, *, is_list: bool = False) -> tuple[tuple[str, ...], int]:
    """Read one value, or several with commas between them; return them and where they end."""
    found: list[str] = []
    while True:
        part, place = _read_value(query, place)
        found.extend(_split_commas(part) if is_list and part[:1] != '"' else [part.strip('"')])
        if not (is_list and query[place - 1 : place + 1] in {',"', '",'} and place < len(query)):
            return tuple(found), place
        place += query[place] == ","


def _read_value(query: str, place: int) -> tuple[str, int]:
    if query[place : place + 1] == '"':
        quotation = _QUOTED.match(query, place)
        if quotation is None:
            raise QueryError("The quotation that begins here has no end.", place, len(query))
        return quotation.group(), quotation.end()
    bare = _BARE.match(query, place)
    return (bare.group(), bare.end()) if bare else ("", place)


def _split_commas(part: str) -> list[str]:
    return [one for one in part.split(",") if one]


def _skip_space(query: str, place: int) -> int:
    space = _SPACE.match(query, place)
    return space.end() if space else place
