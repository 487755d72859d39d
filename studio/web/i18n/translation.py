"""What services, knobs and failures say in plain English, known again and told in other languages.

A sentence with values in it is known by the words around them: `{name} is not a number.` So no
service knows of languages. What is not known stays as it is.
"""

import re
from functools import lru_cache, reduce
from typing import NamedTuple

from studio.web.i18n.locale import ENGLISH, LANGUAGES, catalog, current_language, is_english

SENTENCE_JOINS = ((": ", ": %s", ""), (" (", " (%s)", ")"))
"""How what is ours goes on with what may be anybody's."""

LIST_PATTERNS = ("%s, %s", "%s and %s", "%s and %s more")
"""How several things stand in a sentence: a, b and c; or a, b and 3 more."""

_HOLE = re.compile(r"\{(\w+)\}")
_SENTENCES = re.compile(r"(?<=[.!?]) (?=\S)")
_WORDS = re.compile(r"[^\W\d_] | [^\W\d_]")
_COLUMNS = re.compile(r"(\w+, )*\w+ and \w+\.?")
"""Several names of one word each."""
_LONGEST = 2000
"""Letters of a text beyond which it is nothing of ours."""
_LEAST = 3
"""Letters of its own below which it says nothing: scripts ask for `{s} s`."""
_FEW = 12
"""Letters of its own below which a sentence could be anybody's, if its values were phrases."""

_WIDE = r"[\u2018-\u201d\u3001-\u9fff\uff00-\uffef]"
_STOP = re.compile(r"(?<!\.)\.$")
_GAP = re.compile(rf"(?<={_WIDE}) (?={_WIDE})")
"""What parts words in one script, and never stands between two letters of another."""

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
"""Values that are words of ours even where one stands alone: a column may be called `text`."""
_SEVERAL = frozenset(
    {
        *("aside", "join", "listed", "listed_rows", "names", "of", "shown"),
        *("describe_columns", "join_columns", "join_names", "names_assigned_to", "shown_names"),
    }
)
"""How the values are called that hold several things."""


class _MessagePattern(NamedTuple):
    pattern: re.Pattern[str]
    translation: str
    is_short: bool
    last: str
    """The value that it ends with, if any; that may be a full stop, too."""


def translate(text: str) -> str:
    """Return what a part of the studio without a language said, in the language of this request."""
    if is_english() or not text:
        return text
    told = _said(current_language(), str(text))
    # As it came, where nothing is known: it may be markup, and safe.
    return text if told == text else told


def translate_value(value: object) -> object:
    """Return what a template shows of a value: words in the language of this request."""
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
    """Return what stands before a colon or a full stop, if that is ours, and the rest as it is."""
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
    """Return what ends a sentence, with the full stop of the language."""
    return told.removesuffix(".") + catalog(tag).gettext(".") if _STOP.search(told) else told


def _two(tag: str, text: str) -> str | None:
    """Return what somebody needs: a precision's title stands before why it cannot be had."""
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
    """Return a sentence with its values. A full stop that its last value took ends all of it."""
    if not known.last or not _STOP.search(told[known.last]):
        return known.translation.format_map(told)
    bare = told | {known.last: told[known.last].removesuffix(".")}
    return known.translation.format_map(bare) + catalog(tag).gettext(".")


def _is_foreign(value: str, told: str) -> bool:
    """Whether it is several words that nobody here has said, and no amount."""
    return value == told and bool(_WORDS.search(value)) and not re.search(r"\d", value)


def _value(tag: str, name: str, value: str) -> str:
    """Return a value for its place; words of ours are translated, too."""
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
    """Return the sentences with values, those first that say most themselves."""
    known = catalog(tag)._catalog if tag != ENGLISH else {}  # type: ignore[attr-defined]  # noqa: SLF001 -- the one way to list them
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
