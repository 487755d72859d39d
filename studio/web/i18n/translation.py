"""Translate the finished English texts of services, settings and failures.

A sentence that contains values is recognised by the words around them: `{name} is not a number.`
So services need not know about languages. Unrecognised text stays as it is.
"""

import re
from functools import lru_cache, reduce
from typing import NamedTuple

from studio.web.i18n.locale import ENGLISH, LANGUAGES, catalog, current_language, is_english

SENTENCE_JOINS = ((": ", ": %s", ""), (" (", " (%s)", ")"))
"""How our text is followed by text of unknown origin, such as an error message."""

LIST_PATTERNS = ("%s, %s", "%s and %s", "%s and %s more")
"""How lists are written in a sentence: a, b and c; or a, b and 3 more."""

_HOLE = re.compile(r"\{(\w+)\}")
_SENTENCES = re.compile(r"(?<=[.!?]) (?=\S)")
_WORDS = re.compile(r"[^\W\d_] | [^\W\d_]")
_COLUMNS = re.compile(r"(\w+, )*\w+ and \w+\.?")
"""A list of single-word names."""
_LONGEST = 2000
"""Texts with more characters are not ours."""
_LEAST = 3
"""Messages with fewer literal letters are too generic to match, such as `{s} s`."""
_FEW = 12
"""Messages with fewer literal letters do not match if a value is an untranslated phrase."""

_WIDE = r"[\u2018-\u201d\u3001-\u9fff\uff00-\uffef]"
_STOP = re.compile(r"(?<!\.)\.$")
_GAP = re.compile(rf"(?<={_WIDE}) (?={_WIDE})")
"""A space between two wide characters, which Chinese does not use."""

_OURS = frozenset(
    {
        "become",
        "label",
        "language",
        "not_ready_reasons",
        "part",
        "part_names",
        "phase",
        "share",
        "status",
        "discriminator",
        "title",
        "usual",
        "wanted",
        "what",
        "work",
    }
)
"""Names of values that are our own words and translated even if they are a single word; other
single words may be data, such as a column called `text`."""
_SEVERAL = frozenset(
    {
        *("aside", "join", "listed", "listed_rows", "names", "of", "shown"),
        *("describe_columns", "join_columns", "join_names", "names_assigned_to", "shown_names"),
    }
)
"""Names of values that hold lists."""


class _MessagePattern(NamedTuple):
    pattern: re.Pattern[str]
    translation: str
    is_short: bool
    last: str
    """The name of the value it ends with, if any; that value may itself end with a full stop."""


def translate(text: str) -> str:
    """Translate an English text into the language of this request."""
    if is_english() or not text:
        return text
    told = _said(current_language(), str(text))
    # Return the original object if nothing was translated: it may be safe Markup.
    return text if told == text else told


def translate_value(value: object) -> object:
    """Translate a template value if it is text."""
    return translate(value) if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _said(tag: str, text: str) -> str:
    if len(text) > _LONGEST:
        return text
    whole = _sentence(tag, text)
    if whole is not None:
        return whole
    parts = [_sentence(tag, part) for part in _SENTENCES.split(text)]
    known = [part for part in parts if part is not None]
    return "".join(known) if len(known) == len(parts) else _headed(tag, text)


def _headed(tag: str, text: str) -> str:
    """Translate the part before a colon, parenthesis or full stop, and the rest if possible."""
    stop = catalog(tag).gettext(".")
    if text.endswith(".") and (whole := _sentence(tag, text[:-1])) is not None:
        return whole + stop
    if (two := _two(tag, text)) is not None:
        return two
    for opens, between, closes in SENTENCE_JOINS:
        head, found, rest = text.removesuffix(closes).partition(opens)
        if found and (told := _sentence(tag, head)) is not None:
            if (tail := _sentence(tag, text.removeprefix(head))) is not None:
                return told + tail
            return told + catalog(tag).gettext(between) % _rest(tag, rest)
    return text


def _rest(tag: str, rest: str) -> str:
    told = _said(tag, rest) if rest else ""
    return _stopped(tag, _listed(tag, rest) if told == rest and _COLUMNS.fullmatch(rest) else told)


def _stopped(tag: str, told: str) -> str:
    """Replace a final full stop with that of the language."""
    return told.removesuffix(".") + catalog(tag).gettext(".") if _STOP.search(told) else told


def _two(tag: str, text: str) -> str | None:
    """Translate "X needs Y", where X is the title of a precision and Y what it requires."""
    who, found, _rest = text.removesuffix(".").partition(" needs ")
    whose = _sentence(tag, who) if found else None
    why = _sentence(tag, text.removesuffix(".").removeprefix(f"{who} ")) if whose else None
    if why is None:
        return None
    return f"{whose}{why}" + (catalog(tag).gettext(".") if text.endswith(".") else "")


def _sentence(tag: str, text: str) -> str | None:
    for same in (text, text[:1].lower() + text[1:]) if text else ():
        if (exact := catalog(tag).gettext(same)) != same:
            return exact
    for one in _patterns(tag):
        if found := one.pattern.fullmatch(text):
            values = found.groupdict()
            told = {name: _value(tag, name, value) for name, value in values.items()}
            if one.is_short and any(
                _is_foreign(value, told[name]) for name, value in values.items()
            ):
                continue
            return _GAP.sub("", _filled(tag, one, told))
    return None


def _filled(tag: str, known: _MessagePattern, told: dict[str, str]) -> str:
    """Fill in the values. A full stop in the last value moves to the end of the sentence."""
    if not known.last or not _STOP.search(told[known.last]):
        return known.translation.format_map(told)
    bare = told | {known.last: told[known.last].removesuffix(".")}
    return known.translation.format_map(bare) + catalog(tag).gettext(".")


def _is_foreign(value: str, told: str) -> bool:
    """Whether a value is an untranslated phrase of several words without digits."""
    return value == told and bool(_WORDS.search(value)) and not re.search(r"\d", value)


def _value(tag: str, name: str, value: str) -> str:
    """Translate a value of a sentence, if it is our own text."""
    if value and (" " in value or name in _OURS):
        told = _said(tag, value)
        if told != value:
            return told
    return _listed(tag, value) if name.rstrip("0123456789") in _SEVERAL else value


def _listed(tag: str, value: str) -> str:
    two, last_of, many = map(catalog(tag).gettext, LIST_PATTERNS)
    first, found, last = value.rpartition(" and ")
    told = reduce(lambda one, other: two % (one, other), (first if found else value).split(", "))
    if more := re.fullmatch(r"([\d,]+) more", last):
        return many % (told, more[1]) if found else value
    return last_of % (told, last) if found else told


@lru_cache(maxsize=len(LANGUAGES))
def _patterns(tag: str) -> list[_MessagePattern]:
    """Return the patterns of messages with values, those with the most literal text first."""
    known = catalog(tag)._catalog if tag != ENGLISH else {}  # type: ignore[attr-defined]  # noqa: SLF001 -- the only way to list them
    found = [
        (one, to)
        for one, to in known.items()
        if isinstance(one, str) and _HOLE.search(one) and _letters(one) >= _LEAST and to
    ]
    found.sort(key=lambda pair: -len(_HOLE.sub("", pair[0])))
    return [
        _MessagePattern(_pattern(one), to, _letters(one) < _FEW, _last(one)) for one, to in found
    ]


def _last(message: str) -> str:
    found = re.search(r"\{(\w+)\}$", message)
    return found[1] if found else ""


def _letters(message: str) -> int:
    return sum(map(str.isalpha, _HOLE.sub("", message)))


def _pattern(message: str) -> re.Pattern[str]:
    seen: set[str] = set()

    def hole(match: re.Match[str]) -> str:
        name = match[1]
        again = name in seen
        seen.add(name)
        return f"(?P={name})" if again else f"(?P<{name}>.*?)"

    parts = re.split(r"(\{\w+\})", message)
    return re.compile(
        "".join(
            _HOLE.sub(hole, part) if _HOLE.fullmatch(part) else re.escape(part) for part in parts
        ),
        re.DOTALL,
    )
