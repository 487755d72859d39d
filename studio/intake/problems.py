"""What can be wrong with single rows, in words, and how often it was."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

SHOWN = 20
"""How many places are named; the count is always whole."""


class Code(StrEnum):
    MISSING_ANSWER = "missing_answer"
    MISSING_QUESTION = "missing_question"
    NO_TURNS = "no_turns"
    UNKNOWN_ROLE = "unknown_role"
    NOT_TEXT = "not_text"
    TOOL_CALL = "tool_call"
    NOT_JSON = "not_json"
    NOT_FINITE = "not_finite"
    HUGE_NUMBER = "huge_number"
    TOO_DEEP = "too_deep"
    NOT_A_ROW = "not_a_row"
    BROKEN_CHARACTER = "broken_character"
    TOO_LONG = "too_long"
    CUT_OFF = "cut_off"
    AFTER_END = "after_end"
    NOT_CSV = "not_csv"
    EXTRA_CELLS = "extra_cells"
    UNUSED_COLUMNS = "unused_columns"


SENTENCES: dict[Code, str] = {
    Code.MISSING_ANSWER: "The answer is missing or empty",
    Code.MISSING_QUESTION: "The question is missing or empty",
    Code.NO_TURNS: "There are no turns: expected a list of objects with a role and a text",
    Code.UNKNOWN_ROLE: "A turn has a role other than system, user, assistant or tool",
    Code.NOT_TEXT: "A value that should be text is something else",
    Code.TOOL_CALL: "A turn calls a tool; only text can be learnt in this version",
    Code.NOT_JSON: "Not valid JSON",
    Code.NOT_FINITE: "NaN and Infinity are not valid JSON; write null",
    Code.HUGE_NUMBER: "A number has too many digits; write it in quotes",
    Code.TOO_DEEP: "Nested too deeply",
    Code.NOT_A_ROW: 'Not a row: expected an object such as {"prompt": "…", "completion": "…"}',
    Code.BROKEN_CHARACTER: "A character is broken: half of a surrogate pair",
    Code.TOO_LONG: "Longer than a row may be",
    Code.CUT_OFF: "The file ends in the middle of this row; was it copied whole?",
    Code.AFTER_END: "Text after the end of the list was not read",
    Code.NOT_CSV: "Not valid CSV",
    Code.EXTRA_CELLS: "More cells than the first line has columns",
    Code.UNUSED_COLUMNS: "These columns are not used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and the first places where it is."""

    code: Code
    message: str
    count: int
    rows: list[int]


@dataclass(slots=True)
class Tally:
    """A count of problems that stays small however many there are."""

    _counts: dict[Code, int] = field(default_factory=dict)
    _rows: dict[Code, list[int]] = field(default_factory=dict)
    _details: dict[Code, str] = field(default_factory=dict)

    def add(self, code: Code, number: int, detail: str = "") -> None:
        self._counts[code] = self._counts.get(code, 0) + 1
        places = self._rows.setdefault(code, [])
        if len(places) < SHOWN:
            places.append(number)
        if detail:
            self._details.setdefault(code, detail)

    def __iter__(self) -> Iterator[Problem]:
        """Yield what was found, the most frequent first."""
        for code in sorted(self._counts, key=lambda code: -self._counts[code]):
            detail = self._details.get(code, "")
            yield Problem(
                code=code,
                message=f"{SENTENCES[code]}{f' ({detail})' if detail else ''}.",
                count=self._counts[code],
                rows=self._rows[code],
            )
