"""Problems of single rows: their messages, and how often each occurs."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Literal

MAX_SHOWN_ROWS = 20
"""Places listed; the count covers all."""


class ProblemCode(StrEnum):
    MISSING_ANSWER = "missing_answer"
    MISSING_QUESTION = "missing_question"
    NO_TURNS = "no_turns"
    UNKNOWN_ROLE = "unknown_role"
    NOT_TEXT = "not_text"
    MEDIA = "media"
    NO_TEXT = "no_text"
    BAD_TOOLS = "bad_tools"
    BAD_TOOL_CALL = "bad_tool_call"
    BAD_WEIGHT = "bad_weight"
    NOTHING_LEARNT = "nothing_learnt"
    EQUAL_ANSWERS = "equal_answers"
    FEW_ANSWERS = "few_answers"
    BAD_SCORES = "bad_scores"
    BAD_LABEL = "bad_label"
    NOT_A_NUMBER = "not_a_number"
    ORPHAN = "orphan"
    CYCLE = "cycle"
    REPEATED_ID = "repeated_id"
    NOT_JSON = "not_json"
    NOT_FINITE = "not_finite"
    REPEATED_NAME = "repeated_name"
    HUGE_NUMBER = "huge_number"
    TOO_DEEP = "too_deep"
    NOT_A_ROW = "not_a_row"
    NOT_UTF8 = "not_utf8"
    BROKEN_CHARACTER = "broken_character"
    BROKEN_VALUE = "broken_value"
    TOO_LONG = "too_long"
    CUT_OFF = "cut_off"
    AFTER_END = "after_end"
    NOT_CSV = "not_csv"
    EXTRA_CELLS = "extra_cells"
    RENAMED_COLUMNS = "renamed_columns"
    REASONING = "reasoning"
    UNUSED_COLUMNS = "unused_columns"
    UNUSED_FILES = "unused_files"
    ENCODING = "encoding"
    BY_PARAGRAPH = "by_paragraph"
    BY_LINE = "by_line"
    BY_HEADING = "by_heading"


PROBLEM_MESSAGES: dict[ProblemCode, str] = {
    ProblemCode.MISSING_ANSWER: "The answer is missing or empty",
    ProblemCode.MISSING_QUESTION: "The question is missing or empty",
    ProblemCode.NO_TURNS: "No turns found: expected a list of objects with a role and a text",
    ProblemCode.UNKNOWN_ROLE: "A turn has a role other than system, user, assistant or tool",
    ProblemCode.NOT_TEXT: "A value is not text",
    ProblemCode.MEDIA: (
        "Contains an image, audio, video or file, which no training method supports yet"
    ),
    ProblemCode.NO_TEXT: "The text is missing or empty",
    ProblemCode.BAD_TOOLS: "The tools are not a list of named functions",
    ProblemCode.BAD_TOOL_CALL: "A tool call has no name, or its arguments are not a JSON object",
    ProblemCode.BAD_WEIGHT: "A weight must be 0 or 1",
    ProblemCode.NOTHING_LEARNT: "Every answer has weight 0, so there is nothing to train on",
    ProblemCode.EQUAL_ANSWERS: "The preferred and rejected answers are identical or rated equally",
    ProblemCode.FEW_ANSWERS: "At least two answers are required",
    ProblemCode.BAD_SCORES: "Each answer needs one numeric score or rank",
    ProblemCode.BAD_LABEL: "The label must be good (true) or bad (false)",
    ProblemCode.NOT_A_NUMBER: "The value is not a number",
    ProblemCode.ORPHAN: "Its parent row is missing, so its thread has no start",
    ProblemCode.CYCLE: "Its parent rows form a loop",
    ProblemCode.REPEATED_ID: "The id is missing or duplicated",
    ProblemCode.NOT_JSON: "Not valid JSON",
    ProblemCode.NOT_FINITE: "NaN, Infinity and numbers beyond 1e308 cannot be stored; use null",
    ProblemCode.REPEATED_NAME: "A key appears twice, so its value is ambiguous",
    ProblemCode.HUGE_NUMBER: "A number has too many digits; put it in quotes",
    ProblemCode.TOO_DEEP: "Nested too deeply",
    ProblemCode.NOT_A_ROW: (
        'Not a row: expected an object such as {"prompt": "…", "completion": "…"}'
    ),
    ProblemCode.NOT_UTF8: (
        "Invalid bytes for the file's encoding; save the file as UTF-8 to keep such rows"
    ),
    ProblemCode.BROKEN_VALUE: "A value cannot be read",
    ProblemCode.BROKEN_CHARACTER: "Invalid character: half of a surrogate pair",
    ProblemCode.TOO_LONG: "Longer than the row limit",
    ProblemCode.CUT_OFF: "The file ends in the middle of this row; it may be incomplete",
    ProblemCode.AFTER_END: "Text after the end of the list was ignored",
    ProblemCode.NOT_CSV: "Not valid CSV",
    ProblemCode.EXTRA_CELLS: "More cells than columns in the first line",
    ProblemCode.RENAMED_COLUMNS: "Columns with the same name were numbered",
    ProblemCode.REASONING: (
        "The reasoning of answers is kept, and trained on if the model's chat template includes it"
    ),
    ProblemCode.UNUSED_COLUMNS: "These columns are not used",
    ProblemCode.UNUSED_FILES: "These files in the archive are ignored",
    ProblemCode.ENCODING: ("Not UTF-8; check that the characters look right"),
    ProblemCode.BY_PARAGRAPH: "Each paragraph is a row, separated by blank lines",
    ProblemCode.BY_LINE: "Each line is a row, because there are no blank lines",
    ProblemCode.BY_HEADING: "Each section is a row, starting at a level 1 or 2 heading",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem, and the first places where it occurs."""

    code: ProblemCode
    message: str
    count: int
    rows: list[int]
    split: Literal["train", "validation"] = "train"
    """Which file the row numbers refer to, if there is a separate validation file."""
    places: list[str] = field(default_factory=list)
    """Places of these rows in an archive of several files: "12 of b.jsonl"."""

    @property
    def shown_places(self) -> list[str]:
        """The places as the user finds them."""
        return self.places or list(map(str, self.rows))


@dataclass(slots=True)
class ProblemTally:
    """Counts problems in little memory, however many there are."""

    split: Literal["train", "validation"] = "train"
    _counts: dict[ProblemCode, int] = field(default_factory=dict)
    _rows: dict[ProblemCode, list[int]] = field(default_factory=dict)
    _details: dict[ProblemCode, str] = field(default_factory=dict)
    _members: list[tuple[int, str]] = field(default_factory=list)

    def enter_member(self, member: str, offset: int) -> None:
        """Record which file of an archive the rows after number `before` are in."""
        if member and (not self._members or self._members[-1][1] != member):
            self._members.append((offset, member))

    def add(self, code: ProblemCode, number: int, detail: str = "") -> None:
        self._counts[code] = self._counts.get(code, 0) + 1
        places = self._rows.setdefault(code, [])
        if len(places) < MAX_SHOWN_ROWS:
            places.append(number)
        if detail:
            self._details.setdefault(code, detail)

    def note(self, code: ProblemCode, detail: str = "") -> None:
        """Record something about the file as a whole; no row is lost by it."""
        self._counts.setdefault(code, 0)
        if detail:
            self._details.setdefault(code, detail)

    def count(self, code: ProblemCode) -> tuple[int, str]:
        """Return how often a problem occurred, and the detail of its first occurrence."""
        return self._counts.get(code, 0), self._details.get(code, "")

    def __iter__(self) -> Iterator[Problem]:
        """Yield the problems, the most frequent first."""
        for code in sorted(self._counts, key=lambda code: -self._counts[code]):
            detail, rows = self._details.get(code, ""), self._rows.get(code, [])
            yield Problem(
                code=code,
                message=problem_message(code, detail),
                count=self._counts[code],
                rows=rows,
                split=self.split,
                places=[self._format_place(number) for number in rows] if self._members else [],
            )

    def _format_place(self, number: int) -> str:
        # Problems in threads are reported after all files have been read, so look the file up.
        index = bisect_left(self._members, number, key=itemgetter(0)) - 1
        offset, member = self._members[index]
        return format_place(number, offset, member)


def problem_message(code: ProblemCode, detail: str = "") -> str:
    return f"{PROBLEM_MESSAGES[code]}{f' ({detail})' if detail else ''}."


def format_place(number: int, offset: int, member: str) -> str:
    """Format the place of a row: within its own file, if there are several."""
    return f"{number - offset} of {member}" if member else str(number)
