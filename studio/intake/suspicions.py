"""What may be wrong with one row that can be used: each suspicion looks at it alone."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any
from unicodedata import category, name

Row = Mapping[str, Any]
"""A canonical row: see `studio.intake.turns`."""

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

_LOST = "\N{REPLACEMENT CHARACTER}"

_LETTERS = 60
"""Letters looked at to tell in which script a row is written."""

_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK"}
"""Scripts that are written in one sentence."""


def texts(row: Row) -> Iterator[str]:
    """Yield every text of a row that a model reads or learns."""
    if "text" in row:
        yield row["text"]
    for part in ("messages", "chosen", "rejected"):
        for turn in row.get(part, ()):
            yield turn["content"]


def answer(row: Row) -> str:
    """Return the last text that is learnt; a running text has none."""
    turns: Sequence[Row] = row.get("chosen") or row.get("messages") or ()
    return str(turns[-1]["content"]) if turns else ""


def has_control_characters(row: Row) -> bool:
    return any(map(_CONTROL.search, texts(row)))


def was_misread(row: Row) -> bool:
    return any(map(_MISREAD.search, texts(row)))


def has_lost_characters(row: Row) -> bool:
    return any(_LOST in text for text in texts(row))


def says_nothing(row: Row) -> bool:
    """Whether the answer has not one letter or digit."""
    turns = row.get("chosen") or row.get("messages") or ()
    if not turns or "tool_calls" in turns[-1]:
        return False
    return not any(map(str.isalnum, answer(row)))


def is_out_of_order(row: Row) -> bool:
    """Whether turns follow each other in a way that many chat templates refuse."""
    roles = [turn["role"] for part in ("messages", "chosen") for turn in row.get(part, ())]
    if "system" in roles[1:]:
        return True
    spoken = [role for role in roles if role != "system"]
    if spoken[:1] not in ([], ["user"]):
        return True
    return any(one == other and one in {"user", "assistant"} for one, other in pairwise(spoken))


def has_no_preference(row: Row) -> bool:
    return "chosen" in row and row["chosen"] == row["rejected"]


def script(row: Row) -> str:
    """Return the script most of a row's letters are of: LATIN, CJK, CYRILLIC; or nothing."""
    counts: dict[str, int] = {}
    seen = 0
    for text in texts(row):
        for letter in text[: 4 * _LETTERS]:
            if found := _script(letter):
                counts[found] = counts.get(found, 0) + 1
                seen += 1
        if seen >= _LETTERS:
            break
    return max(counts, key=lambda one: counts[one], default="")


@lru_cache(maxsize=2**15)
def _script(letter: str) -> str:
    if not category(letter).startswith("L"):
        return ""
    first = name(letter, "").split(" ")[0]
    return _TOGETHER.get(first, first)


SUSPICIONS: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "control_characters": (
        "Rows hold control characters or marks that cannot be seen",
        has_control_characters,
    ),
    "misread": (
        "Rows look misread: é stands as Ã©. They were written in UTF-8 and read as Windows-1252",
        was_misread,
    ),
    "lost_characters": (
        "Rows hold the mark � where a character was lost before they were brought",
        has_lost_characters,
    ),
    "says_nothing": ("Answers have not one letter or digit", says_nothing),
    "out_of_order": (
        "Turns do not alternate, or a system turn comes late; some chat templates refuse that",
        is_out_of_order,
    ),
    "no_preference": ("The chosen answer equals the rejected one", has_no_preference),
}
"""Each by its code: what it says of the rows it finds, and what tells it."""
