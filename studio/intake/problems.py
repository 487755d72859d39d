"""Problems of single rows: their messages, and how often each occurs."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Literal, Self

MAX_SHOWN_ROWS = 20
"""Places listed; the count covers all."""


class ProblemCode(StrEnum):
    """A kind of problem, by its code; `message` describes it."""

    message: str

    def __new__(cls, value: str, message: str) -> Self:
        code = str.__new__(cls, value)
        code._value_, code.message = value, message
        return code

    MISSING_ANSWER = "missing_answer", "The answer is missing or empty"
    MISSING_QUESTION = "missing_question", "The question is missing or empty"
    NO_TURNS = "no_turns", "No turns found: expected a list of objects with a role and a text"
    UNKNOWN_ROLE = "unknown_role", "A turn has a role other than system, user, assistant or tool"
    NOT_TEXT = "not_text", "A value is not text"
    MEDIA = (
        "media",
        "Contains an image, audio, video or file that is not used",
    )
    NOT_AN_IMAGE = "not_an_image", "An image is not a PNG, JPEG, WebP or GIF file"
    BROKEN_IMAGE = "broken_image", "An image cannot be decoded"
    LARGE_IMAGE = "large_image", "An image is larger than the limit"
    MISSING_IMAGE = (
        "missing_image",
        "An image is missing: it must be in a zip archive with the rows",
    )
    OUTSIDE_IMAGE = (
        "outside_image",
        "The path of an image leads outside of the archive",
    )
    UNREACHABLE_IMAGE = "unreachable_image", "An image could not be downloaded"
    IMAGE_COUNT = "image_count", "There are not as many images as places for them"
    IMAGE_IN_ANSWER = "image_in_answer", "An answer has an image, but models answer with text"
    NO_TEXT = "no_text", "The text is missing or empty"
    BAD_TOOLS = "bad_tools", "The tools are not a list of named functions"
    BAD_TOOL_CALL = (
        "bad_tool_call",
        "A tool call has no name, or its arguments are not a JSON object",
    )
    BAD_WEIGHT = "bad_weight", "A weight must be 0 or 1"
    NOTHING_LEARNT = "nothing_learnt", "Every answer has weight 0, so there is nothing to train on"
    EQUAL_ANSWERS = (
        "equal_answers",
        "The preferred and rejected answers are identical or rated equally",
    )
    FEW_ANSWERS = "few_answers", "At least two answers are required"
    BAD_SCORES = "bad_scores", "Each answer needs one numeric score or rank"
    BAD_LABEL = "bad_label", "The label must be good (true) or bad (false)"
    NO_STEPS = "no_steps", "The steps are not a list of texts, or one of them is empty"
    BAD_VERDICTS = (
        "bad_verdicts",
        "Each step needs one verdict: right (true or 1) or wrong (false, 0 or -1)",
    )
    NO_WORDS = "no_words", "The words or tags are not a list, or there are none"
    UNEQUAL_LISTS = "unequal_lists", "There are not as many tags as words"
    NO_TAG = "no_tag", "A line has a word without a tag"
    DOCUMENT_START = "document_start", "It only marks where a document begins, and has no words"
    BAD_SPANS = "bad_spans", "The entities are not a list with a start, an end and a label each"
    SPAN_OUTSIDE = "span_outside", "An entity is empty, or not within its text"
    OVERLAPPING_SPANS = "overlapping_spans", "Entities overlap: a word can belong to one only"
    NOT_A_TASK = (
        "not_a_task",
        "A task must end with a turn that a model answers: the user's, or the result of a tool",
    )
    NO_PAIR = "no_pair", "One of the two texts is missing or empty"
    SEVERAL_POSITIVES = "several_positives", "Several texts match: give each a row of its own"
    NO_SIMILARITY = "no_similarity", "It does not say how alike the texts are"
    NOT_AN_INDICATOR = "not_an_indicator", "A column of one label must hold 0 or 1"
    NOT_A_NUMBER = "not_a_number", "The value is not a number"
    ORPHAN = "orphan", "Its parent row is missing, so its thread has no start"
    CYCLE = "cycle", "Its parent rows form a loop"
    REPEATED_ID = "repeated_id", "The id is missing or duplicated"
    NOT_JSON = "not_json", "Not valid JSON"
    NOT_FINITE = "not_finite", "NaN, Infinity and numbers beyond 1e308 cannot be stored; use null"
    REPEATED_NAME = "repeated_name", "A key appears twice, so its value is ambiguous"
    HUGE_NUMBER = "huge_number", "A number has too many digits; put it in quotes"
    TOO_DEEP = "too_deep", "Nested too deeply"
    NOT_A_ROW = (
        "not_a_row",
        'Not a row: expected an object such as {"prompt": "…", "completion": "…"}',
    )
    NOT_UTF8 = (
        "not_utf8",
        "Invalid bytes for the file's encoding; save the file as UTF-8 to keep such rows",
    )
    BROKEN_CHARACTER = "broken_character", "Invalid character: half of a surrogate pair"
    BROKEN_VALUE = "broken_value", "A value cannot be read"
    TOO_LONG = "too_long", "Longer than the row limit"
    CUT_OFF = "cut_off", "The file ends in the middle of this row; it may be incomplete"
    AFTER_END = "after_end", "Text after the end of the list was ignored"
    NOT_CSV = "not_csv", "Not valid CSV"
    EXTRA_CELLS = "extra_cells", "More cells than columns in the first line"
    RENAMED_COLUMNS = "renamed_columns", "Columns with the same name were numbered"
    REASONING = (
        "reasoning",
        "The reasoning of answers is kept, and trained on if the model's chat template includes it",
    )
    IMAGES = "images", "Images"
    UNUSED_COLUMNS = "unused_columns", "These columns are not used"
    UNUSED_FILES = "unused_files", "These files in the archive are ignored"
    ENCODING = "encoding", "Not UTF-8; check that the characters look right"
    BY_PARAGRAPH = "by_paragraph", "Each paragraph is a row, separated by blank lines"
    BY_LINE = "by_line", "Each line is a row, because there are no blank lines"
    BY_HEADING = "by_heading", "Each section is a row, starting at a level 1 or 2 heading"


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
    return f"{code.message}{f' ({detail})' if detail else ''}."


def format_place(number: int, offset: int, member: str) -> str:
    """Format the place of a row: within its own file, if there are several."""
    return f"{number - offset} of {member}" if member else str(number)
