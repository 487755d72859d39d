"""What can be wrong with single rows, in words, and how often it was."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Literal

MAX_SHOWN_ROWS = 20
"""How many places are named; the count is always whole."""


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
    ProblemCode.NO_TURNS: "There are no turns: expected a list of objects with a role and a text",
    ProblemCode.UNKNOWN_ROLE: "A turn has a role other than system, user, assistant or tool",
    ProblemCode.NOT_TEXT: "A value that should be text is something else",
    ProblemCode.MEDIA: "Holds an image, audio, video or file, which no training method reads yet",
    ProblemCode.NO_TEXT: "The text is missing or empty",
    ProblemCode.BAD_TOOLS: "The tools are no list of functions with a name each",
    ProblemCode.BAD_TOOL_CALL: "A tool call has no name, or arguments that are no JSON object",
    ProblemCode.BAD_WEIGHT: "A weight is neither 0 nor 1",
    ProblemCode.NOTHING_LEARNT: "Every answer has the weight 0, so that nothing would be learnt",
    ProblemCode.EQUAL_ANSWERS: "The better and the worse answer are the same, or equally good",
    ProblemCode.FEW_ANSWERS: "There is no list of at least two answers",
    ProblemCode.BAD_SCORES: "The scores or ranks are not a number for each answer",
    ProblemCode.BAD_LABEL: "The label says neither good (true) nor bad (false)",
    ProblemCode.NOT_A_NUMBER: "The number is something else",
    ProblemCode.ORPHAN: "A row before it is missing, so that its thread has no beginning",
    ProblemCode.CYCLE: "The rows before it go round in a circle",
    ProblemCode.REPEATED_ID: "Another row has this id, or it has none",
    ProblemCode.NOT_JSON: "Not valid JSON",
    ProblemCode.NOT_FINITE: "NaN, Infinity and numbers beyond 1e308 cannot be kept; write null",
    ProblemCode.REPEATED_NAME: "One name has two values, and nobody knows which is meant",
    ProblemCode.HUGE_NUMBER: "A number has too many digits; write it in quotes",
    ProblemCode.TOO_DEEP: "Nested too deeply",
    ProblemCode.NOT_A_ROW: (
        'Not a row: expected an object such as {"prompt": "…", "completion": "…"}'
    ),
    ProblemCode.NOT_UTF8: (
        "Not text in the encoding of the file; save it as UTF-8 to keep such rows"
    ),
    ProblemCode.BROKEN_VALUE: "A value cannot be read",
    ProblemCode.BROKEN_CHARACTER: "A character is broken: half of a surrogate pair",
    ProblemCode.TOO_LONG: "Longer than a row may be",
    ProblemCode.CUT_OFF: "The file ends in the middle of this row; was it copied whole?",
    ProblemCode.AFTER_END: "Text after the end of the list was not read",
    ProblemCode.NOT_CSV: "Not valid CSV",
    ProblemCode.EXTRA_CELLS: "More cells than the first line has columns",
    ProblemCode.RENAMED_COLUMNS: "Columns of one name are told apart by numbers",
    ProblemCode.REASONING: (
        "The reasoning of answers is kept, and learnt where the model's chat template writes it"
    ),
    ProblemCode.UNUSED_COLUMNS: "These columns are not used",
    ProblemCode.UNUSED_FILES: "These files of the archive are not read",
    ProblemCode.ENCODING: (
        "Read in another encoding than UTF-8; check that its characters are right"
    ),
    ProblemCode.BY_PARAGRAPH: "Each paragraph is a row: blank lines part them",
    ProblemCode.BY_LINE: "Each line is a row, for there are no blank lines",
    ProblemCode.BY_HEADING: "Each section is a row: headings of the first two levels begin one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and the first places where it is."""

    code: ProblemCode
    message: str
    count: int
    rows: list[int]
    split: Literal["train", "validation"] = "train"
    """Which file the numbers of rows are of, where a second one was brought to validate on."""
    places: list[str] = field(default_factory=list)
    """Where these rows are in an archive of several files: "12 of b.jsonl"."""

    @property
    def shown_places(self) -> list[str]:
        """The rows as a person finds them."""
        return self.places or list(map(str, self.rows))


@dataclass(slots=True)
class ProblemTally:
    """A count of problems that stays small however many there are."""

    split: Literal["train", "validation"] = "train"
    _counts: dict[ProblemCode, int] = field(default_factory=dict)
    _rows: dict[ProblemCode, list[int]] = field(default_factory=dict)
    _details: dict[ProblemCode, str] = field(default_factory=dict)
    _members: list[tuple[int, str]] = field(default_factory=list)

    def enter_member(self, member: str, before: int) -> None:
        """Note in which file of an archive rows behind this number are."""
        if member and (not self._members or self._members[-1][1] != member):
            self._members.append((before, member))

    def add(self, code: ProblemCode, number: int, detail: str = "") -> None:
        self._counts[code] = self._counts.get(code, 0) + 1
        places = self._rows.setdefault(code, [])
        if len(places) < MAX_SHOWN_ROWS:
            places.append(number)
        if detail:
            self._details.setdefault(code, detail)

    def note(self, code: ProblemCode, detail: str = "") -> None:
        """Keep something that is true of the file as a whole, of which no row is lost."""
        self._counts.setdefault(code, 0)
        if detail:
            self._details.setdefault(code, detail)

    def count(self, code: ProblemCode) -> tuple[int, str]:
        """Return how often a problem was met, and the detail of its first place."""
        return self._counts.get(code, 0), self._details.get(code, "")

    def __iter__(self) -> Iterator[Problem]:
        """Yield what was found, the most frequent first."""
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
        # Rows of threads are told of when all files have been read.
        at = bisect_left(self._members, number, key=itemgetter(0)) - 1
        before, member = self._members[at]
        return format_place(number, before, member)


def problem_message(code: ProblemCode, detail: str = "") -> str:
    return f"{PROBLEM_MESSAGES[code]}{f' ({detail})' if detail else ''}."


def format_place(number: int, before: int, member: str) -> str:
    """Say where a row is as a person finds it: in its own file, if there are several."""
    return f"{number - before} of {member}" if member else str(number)
