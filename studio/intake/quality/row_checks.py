"""What may be wrong with one row that can be used: each suspicion looks at it alone."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any
from unicodedata import category, name

Row = Mapping[str, Any]
"""A canonical row: see `studio.intake.row_formats.schema`."""

_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]"
)
"""Nothing that people type; the last of them turn the direction of writing around unseen."""

_MISREAD = re.compile(
    r"Ã[\u0080-\u00bf\u0192\u2020\u2021\u02c6\u2030]"
    r"|Â[\u00a0-\u00bf]"
    r"|â€[\u0080-\u00bf\u2122\u0153\u0161\u02dc\u201c\u201d\u2018\u2019\u00a6]"
    r"|[ÐÑ][\u0080-\u00bf\u2018-\u201e\u0192\u2020]{1}[ÐÑ]"
)
"""UTF-8 that was read as Windows-1252: é becomes Ã©."""

_LOST = re.compile("\N{REPLACEMENT CHARACTER}")

_LATIN = re.compile("[A-Za-z]")

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
"""A letter or digit of any script."""

LONG_TOKENS = 1024
"""Tokens: the longest example of a recipe that does not say otherwise, as a test sees to."""

LONG_BYTES = 4 * LONG_TOKENS
"""About as much text: in most languages and scripts a token is three to five bytes of UTF-8."""

_SAMPLED_LETTERS = 60
"""Letters looked at to tell in which script a row is written."""

_MERGED_SCRIPTS = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK"}
"""Scripts that are written in one sentence."""


def row_texts(row: Row) -> Iterator[str]:
    """Yield every text of a row that a model reads or learns."""
    if "text" in row:
        yield row["text"]
    for part in ("messages", "chosen", "rejected"):
        for turn in row.get(part, ()):
            yield turn["content"]


def last_answer(row: Row) -> str:
    """Return the last text that is learnt; a running text has none."""
    turns: Sequence[Row] = row.get("chosen") or row.get("messages") or ()
    return str(turns[-1]["content"]) if turns else ""


def has_empty_answer(row: Row) -> bool:
    """Whether the answer has not one letter or digit."""
    if _LETTER_OR_DIGIT.search(last_answer(row)):
        return False
    turns: Sequence[Row] = row.get("chosen") or row.get("messages") or ()
    return bool(turns) and "tool_calls" not in turns[-1]


def is_out_of_order(row: Row) -> bool:
    return bool(misplaced_turns(row))


def misplaced_turns(row: Row) -> tuple[int, ...]:
    """Return which turns follow others in a way that many chat templates refuse, from zero on.

    Of a preference, the better answer's turns follow those that ask.
    """
    turns = row.get("messages", [])
    if "chosen" in row:
        turns = [*turns, *row["chosen"]]
    return _misplaced_places(tuple([turn["role"] for turn in turns]))


@lru_cache(maxsize=1024)
def _misplaced_places(roles: tuple[str, ...]) -> tuple[int, ...]:
    late = {place for place, role in enumerate(roles) if role == "system" and place}
    spoken = [place for place, role in enumerate(roles) if role != "system"]
    again = {
        other
        for one, other in pairwise(spoken)
        if roles[one] == roles[other] and roles[one] in {"user", "assistant"}
    }
    early = {place for place in spoken[:1] if roles[place] != "user"}
    return tuple(sorted(late | again | early))


def is_over_long(row: Row) -> bool:
    return sum(len(text.encode()) for text in row_texts(row)) > LONG_BYTES


def main_script(row: Row) -> str:
    """Return the script most of a row's letters are of: LATIN, CJK, CYRILLIC; or nothing."""
    counts: Counter[str] = Counter()
    for one in row_texts(row):
        for letter, times in Counter(one[: 4 * _SAMPLED_LETTERS]).items():
            if found := _letter_script(letter):
                counts[found] += times
        if counts.total() >= _SAMPLED_LETTERS:
            break
    return max(counts, key=counts.__getitem__, default="")


def ascii_script(row: Row) -> str:
    """Return the same of a row in ASCII, sooner."""
    written = _LATIN.search(last_answer(row)) or any(map(_LATIN.search, row_texts(row)))
    return "LATIN" if written else ""


def script_spans(text: str, wanted: str) -> Iterator[tuple[int, int]]:
    """Yield where a text is written in a script: from where to where."""
    start = None
    for place, letter in enumerate(text):
        own = _letter_script(letter)
        if own == wanted and start is None:
            start = place
        elif start is not None and own not in {wanted, ""}:
            yield start, place
            start = None
    if start is not None:
        yield start, len(text)


def script_name(found: str) -> str:
    return {"CJK": "Chinese or Japanese"}.get(found, found.capitalize())


@lru_cache(maxsize=2**15)
def _letter_script(letter: str) -> str:
    if not category(letter).startswith("L"):
        return ""
    first = name(letter, "").split(" ")[0]
    return _MERGED_SCRIPTS.get(first, first)


TEXT_CHECKS: dict[str, tuple[str, re.Pattern[str]]] = {
    "control_characters": (
        "Rows hold control characters or marks that cannot be seen",
        _CONTROL,
    ),
    "misread": (
        "Rows look misread: é stands as Ã©. They were written in UTF-8 and read as Windows-1252",
        _MISREAD,
    ),
    "lost_characters": (
        "Rows hold the mark � where a character was lost before they were brought",
        _LOST,
    ),
}
"""Suspicions of single texts: what each says of the rows it finds, and what is found in a text."""

ROW_CHECKS: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "says_nothing": ("Answers have not one letter or digit", has_empty_answer),
    "out_of_order": (
        "Turns do not alternate, or a system turn comes late; some chat templates refuse that",
        is_out_of_order,
    ),
}
"""Suspicions of whole rows."""

OVER_LONG_MESSAGE = (
    f"Rows are longer than about {LONG_TOKENS:,} tokens: a run whose longest example is no longer "
    "cuts off their ends"
)
