"""Checks of single rows: possible problems of rows that can be used, and where they are."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any
from unicodedata import category, name

from studio.intake.row_formats.schema import STEP_SEPARATOR

Row = Mapping[str, Any]
"""A canonical row: see `studio.intake.row_formats.schema`."""

_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]"
)
"""Characters that people do not type; the last of them invisibly change the text direction."""

_MISREAD = re.compile(
    r"Ã[\u0080-\u00bf\u0192\u2020\u2021\u02c6\u2030]"
    r"|Â[\u00a0-\u00bf]"
    r"|â€[\u0080-\u00bf\u2122\u0153\u0161\u02dc\u201c\u201d\u2018\u2019\u00a6]"
    r"|[ÐÑ][\u0080-\u00bf\u2018-\u201e\u0192\u2020]{1}[ÐÑ]"
)
"""UTF-8 that was decoded as Windows-1252: é becomes Ã©."""

_LOST = re.compile("\N{REPLACEMENT CHARACTER}")

_LATIN = re.compile("[A-Za-z]")

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
"""A letter or digit of any script."""

LONG_TOKENS = 1024
"""Default max length of a recipe in tokens; a test keeps them equal."""

LONG_BYTES = 4 * LONG_TOKENS
"""About the same length in bytes: in most languages and scripts, a token is three to five bytes of
UTF-8."""

_SAID = re.compile(r"\d+|[^\W\d_]")
"""What a text says: its letters and whole numbers."""

_SAMPLED_LETTERS = 60
"""Letters sampled to detect the script of a row."""

_MERGED_SCRIPTS = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK"}
"""Scripts that are mixed within one sentence."""


def row_texts(row: Row) -> Iterator[str]:
    """Yield every text of a row that a model reads or is trained on."""
    if "text" in row:
        yield row["text"]
    for part in ("messages", "chosen", "rejected"):
        for turn in row.get(part, ()):
            yield turn["content"]
    yield from row.get("steps", ())
    if "anchor" in row:
        yield from (row["anchor"], row["positive"], *row.get("negatives", ()))


def last_answer(row: Row) -> str:
    """Return the last answer; plain texts, pairs of texts and tasks have none."""
    if "item" in row:
        return ""
    if "steps" in row:
        return STEP_SEPARATOR.join(row["steps"])
    turns: Sequence[Row] = row.get("chosen") or row.get("messages") or ()
    return str(turns[-1]["content"]) if turns else ""


def has_empty_answer(row: Row) -> bool:
    """Tell whether the answer has no letter or digit."""
    if "steps" in row or "item" in row or _LETTER_OR_DIGIT.search(last_answer(row)):
        return False
    turns: Sequence[Row] = row.get("chosen") or row.get("messages") or ()
    return bool(turns) and "tool_calls" not in turns[-1]


def has_empty_prompt(row: Row) -> bool:
    """Tell whether the prompt of a task has no letter or digit."""
    if "item" not in row:
        return False
    return not any(
        _LETTER_OR_DIGIT.search(turn["content"])
        for turn in row["messages"]
        if turn["role"] != "system"
    )


def is_out_of_order(row: Row) -> bool:
    return bool(misplaced_turns(row))


def misplaced_turns(row: Row) -> tuple[int, ...]:
    """Return the turns, counted from 0, in an order that many chat templates reject.

    In a preference, the preferred answer's turns follow the prompt.
    """
    turns = row.get("messages", [])
    if "chosen" in row:
        turns = [*turns, *row["chosen"]]
    return _misplaced_places(tuple([turn["role"] for turn in turns]))


@lru_cache(maxsize=1024)
def _misplaced_places(roles: tuple[str, ...]) -> tuple[int, ...]:
    late = {place for place, role in enumerate(roles) if role == "system" and place}
    dialogue = [place for place, role in enumerate(roles) if role != "system"]
    repeated = {
        following
        for previous, following in pairwise(dialogue)
        if roles[previous] == roles[following] and roles[previous] in {"user", "assistant"}
    }
    early = {place for place in dialogue[:1] if roles[place] != "user"}
    return tuple(sorted(late | repeated | early))


def is_over_long(row: Row) -> bool:
    return sum(len(text.encode()) for text in row_texts(row)) > LONG_BYTES


def main_script(row: Row) -> str:
    """Return the script of most letters: LATIN, CJK, CYRILLIC and so on; "" without any."""
    counts: Counter[str] = Counter()
    for text in row_texts(row):
        for letter, times in Counter(text[: 4 * _SAMPLED_LETTERS]).items():
            if script := _letter_script(letter):
                counts[script] += times
        if counts.total() >= _SAMPLED_LETTERS:
            break
    return max(counts, key=counts.__getitem__, default="")


def ascii_script(row: Row) -> str:
    """Return the main script of a row in ASCII; faster than `main_script`."""
    has_letters = _LATIN.search(last_answer(row)) or any(map(_LATIN.search, row_texts(row)))
    return "LATIN" if has_letters else ""


def script_spans(text: str, script: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of a text in a script, as start and end."""
    start = None
    for place, letter in enumerate(text):
        letter_script = _letter_script(letter)
        if letter_script == script and start is None:
            start = place
        elif start is not None and letter_script not in {script, ""}:
            yield start, place
            start = None
    if start is not None:
        yield start, len(text)


def script_name(script: str) -> str:
    return {"CJK": "Chinese or Japanese"}.get(script, script.capitalize())


@lru_cache(maxsize=2**15)
def _letter_script(letter: str) -> str:
    if not category(letter).startswith("L"):
        return ""
    first = name(letter, "").split(" ")[0]
    return _MERGED_SCRIPTS.get(first, first)


TEXT_CHECKS: dict[str, tuple[str, re.Pattern[str]]] = {
    "control_characters": (
        "Rows contain control characters or invisible characters",
        _CONTROL,
    ),
    "misread": (
        "Rows have garbled characters (Ã© for é): UTF-8 text was decoded as Windows-1252",
        _MISREAD,
    ),
    "lost_characters": (
        "Rows contain �: characters were lost before the upload",
        _LOST,
    ),
}
"""Checks of single texts: the message, and the pattern to find."""


def is_equal_pair(row: Row) -> bool:
    """Whether both answers of a preference say the same, apart from whitespace."""
    if "rejected" not in row:
        return False
    better, worse = (
        [(turn["role"], turn["content"].split(), turn.get("tool_calls")) for turn in row[part]]
        for part in ("chosen", "rejected")
    )
    return better == worse


def is_similar_pair(row: Row) -> bool:
    """Whether both answers of a preference differ, but not in their letters and digits."""
    if "rejected" not in row or is_equal_pair(row):
        return False
    better, worse = (
        [(turn["role"], _SAID.findall(turn["content"].casefold())) for turn in row[part]]
        for part in ("chosen", "rejected")
    )
    has_calls = any("tool_calls" in turn for turn in (*row["chosen"], *row["rejected"]))
    return better == worse and not has_calls and any(letters for _role, letters in better)


def answer_chars(row: Row, part: str) -> int:
    """Return how long one of the two answers of a preference is, in characters."""
    return sum(len(turn["content"]) for turn in row[part])


ROW_CHECKS: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "says_nothing": ("Answers have no letters or digits", has_empty_answer),
    "empty_prompt": ("Prompts have no letters or digits", has_empty_prompt),
    "out_of_order": (
        "Turns do not alternate, or a system turn is not first; some chat templates reject that",
        is_out_of_order,
    ),
    "equal_pair": (
        "The better and the worse answer are equal; methods that compare them leave such rows out",
        is_equal_pair,
    ),
    "similar_pair": (
        "The better and the worse answer differ only in case, spaces or punctuation",
        is_similar_pair,
    ),
}
"""Checks of whole rows."""

OVER_LONG_MESSAGE = (
    f"Rows are longer than about {LONG_TOKENS:,} tokens: a run with that max length truncates them"
)


Span = tuple[int, int]

SHOWN_CHARS = 4000
"""Characters of a text shown around a match."""
_CHARS_BEFORE = 300
"""Of them, the characters before the match."""
_OVER_LONG_CHARS = 2 * _CHARS_BEFORE
"""If everything that follows matches, its beginning is enough."""
_MAX_NAMED = 3
"""Distinct matches named in a sentence."""

_TWIN_MESSAGES = {
    "duplicates": "Identical to row {row}.",
    "same_question": "Asks the same as row {row}.",
    "overlap": "Asks the same as training row {row}.",
    "contradiction": "Its better answer is the worse one of row {row}.",
}


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str
    is_match: bool = False
    is_note: bool = False
    """Whether this is our note on omitted text, and not part of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingInRow:
    """A row, with a finding located in it."""

    reason: str
    """A sentence; empty if the finding's message says it all."""
    twin: int | None
    """The row it repeats; for an overlap, a row of the training part."""
    texts: list[list[TextPiece]]
    """Each text of the row, in the order of `row_texts`; long texts are cut to the part
    around the match."""
    turns: tuple[int, ...]
    """The turns that match as a whole."""


def locate_finding(code: str, row: Row, twin: int | None = None) -> FindingInRow:
    """Locate a finding in one of its rows."""
    spans = list(_text_spans(code, row))
    pieces = [
        _split_text(code, text, text_spans)
        for text, text_spans in zip(row_texts(row), spans, strict=True)
    ]
    return FindingInRow(
        reason=_reason(code, row, twin), twin=twin, texts=pieces, turns=_found_turns(code, row)
    )


def _text_spans(code: str, row: Row) -> Iterator[list[Span]]:
    main = main_script(row) if code == "other_script" else ""
    offset = 0
    for text in row_texts(row):
        if code in TEXT_CHECKS:
            yield _match_spans(TEXT_CHECKS[code][1], text)
        elif main:
            yield list(script_spans(text, main))
        elif code == "over_long":
            budget = max(0, LONG_BYTES - offset)
            cut = len(text.encode()[:budget].decode(errors="ignore"))
            yield [(cut, len(text))] if cut < len(text) else []
        else:
            yield []
        offset += len(text.encode())


def _match_spans(pattern: re.Pattern[str], text: str) -> list[Span]:
    return [match.span() for match in pattern.finditer(text)]


def _split_text(code: str, text: str, spans: list[Span]) -> list[TextPiece]:
    first = spans[0][0] if spans else 0
    window = _OVER_LONG_CHARS if code == "over_long" else SHOWN_CHARS
    start = max(0, first - _CHARS_BEFORE) if len(text) > window else 0
    end = min(len(text), start + window)
    pieces = list(_mark_spans(code, text, spans, (start, end)))
    if start:
        pieces.insert(0, TextPiece(f"({start:,} characters before) ", is_note=True))
    if end < len(text):
        pieces.append(TextPiece(f" (and {len(text) - end:,} more)", is_note=True))
    return pieces


def _mark_spans(code: str, text: str, spans: Iterable[Span], window: Span) -> Iterator[TextPiece]:
    place, end = window
    for first, last in spans:
        if first >= end:
            break
        if first > place:
            yield TextPiece(text[place:first])
        place = min(last, end)
        yield TextPiece(_show_invisible(code, text[first:place]), is_match=True)
    if place < end:
        yield TextPiece(text[place:end])


def _show_invisible(code: str, text: str) -> str:
    return " ".join(map(_code_point, text)) if code == "control_characters" else text


def _code_point(letter: str) -> str:
    return f"U+{ord(letter):04X}"


def _found_turns(code: str, row: Row) -> tuple[int, ...]:
    if code == "out_of_order":
        return misplaced_turns(row)
    if code in {"says_nothing", "empty_prompt"}:
        return (len(row["messages"]) + len(row.get("chosen", ())) - 1,)
    return ()


def _reason(code: str, row: Row, twin: int | None) -> str:
    if code in _TWIN_MESSAGES and twin is not None:
        return _TWIN_MESSAGES[code].format(row=twin)
    if code == "other_script":
        return f"Most letters are {script_name(main_script(row))}."
    if code == "over_long":
        size = sum(len(text.encode()) for text in row_texts(row)) * LONG_TOKENS // LONG_BYTES
        return f"About {size:,} tokens: the marked part is beyond the first {LONG_TOKENS:,}."
    if code == "out_of_order":
        return " ".join(
            _describe_misplaced(row, place) for place in misplaced_turns(row)[:_MAX_NAMED]
        )
    if code in TEXT_CHECKS:
        return _describe_matches(code, row)
    return ""


def _describe_matches(code: str, row: Row) -> str:
    pattern = TEXT_CHECKS[code][1]
    matches = [match for text in row_texts(row) for match in pattern.findall(text)]
    descriptions = [_describe_match(code, match) for match in dict.fromkeys(matches)][:_MAX_NAMED]
    if len(matches) > 1 and len(descriptions) == 1:
        return f"It contains {descriptions[0]}, {len(matches):,} times."
    return f"It contains {', '.join(descriptions)}."


def _describe_match(code: str, match: str) -> str:
    if code != "control_characters":
        return match
    letter_name = name(match, "").lower()
    return f"{_code_point(match)} ({letter_name})" if letter_name else _code_point(match)


def _describe_misplaced(row: Row, place: int) -> str:
    turns = [*row["messages"], *row.get("chosen", ())]
    role = turns[place]["role"]
    if role == "system":
        return f"Turn {place + 1} is a system turn, which must come first."
    earlier_roles = [turn["role"] for turn in turns[:place] if turn["role"] != "system"]
    if not earlier_roles:
        return f"The first turn has role {role}, but its role should be user."
    return f"Turn {place + 1} has the same role as the turn before it: {role}."
