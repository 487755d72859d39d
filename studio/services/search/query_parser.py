"""Parse the query language of the search box: words, and fields with operators and values.

    support tone            both words, in name or notes
    "support tone"          the exact phrase
    status:running,queued   a field with any of these values
    eval_loss<0.5           a number comparison
    created>=2026-11-01     a date comparison
    -tag:draft              negation

`studio.services.search.query_fields` defines the fields and their types.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from studio.errors import InvalidError

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
        raise QueryError(f"{name}{sign} needs a value.", start, field.end(), hint=hint)
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
        if is_list and part[:1] != '"':
            values.extend(filter(None, part.split(",")))
        else:
            values.append(part.strip('"'))
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


def _skip_space(query: str, position: int) -> int:
    space = _SPACE.match(query, position)
    return space.end() if space else position
