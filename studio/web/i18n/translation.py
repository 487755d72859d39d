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
        "part_name",
        "part_names",
        "phase",
        "rounded",
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
        *("aside", "available", "join", "listed", "listed_rows", "names", "of", "shown"),
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
    translated = _said(current_language(), str(text))
    # Return the original object if nothing was translated: it may be safe Markup.
    return text if translated == text else translated


def translate_value(value: object) -> object:
    """Translate a template value if it is text."""
    return translate(value) if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _said(tag: str, text: str) -> str:
    if len(text) > _LONGEST:
        return text
    sentence = _sentence(tag, text)
    if sentence is not None:
        return sentence
    parts = [_sentence(tag, part) for part in _SENTENCES.split(text)]
    translated = [part for part in parts if part is not None]
    return "".join(translated) if len(translated) == len(parts) else _headed(tag, text)


def _headed(tag: str, text: str) -> str:
    """Translate the part before a colon, parenthesis or full stop, and the rest if possible."""
    stop = catalog(tag).gettext(".")
    if text.endswith(".") and (sentence := _sentence(tag, text[:-1])) is not None:
        return sentence + stop
    if (requirement := _two(tag, text)) is not None:
        return requirement
    for opening, template, closing in SENTENCE_JOINS:
        head, separator, rest = text.removesuffix(closing).partition(opening)
        if separator and (translated_head := _sentence(tag, head)) is not None:
            if (translated_tail := _sentence(tag, text.removeprefix(head))) is not None:
                return translated_head + translated_tail
            return translated_head + catalog(tag).gettext(template) % _rest(tag, rest)
    return text


def _rest(tag: str, rest: str) -> str:
    translated = _said(tag, rest) if rest else ""
    return _stopped(
        tag, _listed(tag, rest) if translated == rest and _COLUMNS.fullmatch(rest) else translated
    )


def _stopped(tag: str, translated: str) -> str:
    """Replace a final full stop with that of the language."""
    return (
        translated.removesuffix(".") + catalog(tag).gettext(".")
        if _STOP.search(translated)
        else translated
    )


def _two(tag: str, text: str) -> str | None:
    """Translate "X needs Y", where X is the title of a precision and Y what it requires."""
    subject, separator, _rest = text.removesuffix(".").partition(" needs ")
    translated_subject = _sentence(tag, subject) if separator else None
    translated_reason = (
        _sentence(tag, text.removesuffix(".").removeprefix(f"{subject} "))
        if translated_subject
        else None
    )
    if translated_reason is None:
        return None
    return f"{translated_subject}{translated_reason}" + (
        catalog(tag).gettext(".") if text.endswith(".") else ""
    )


def _sentence(tag: str, text: str) -> str | None:
    for variant in (text, text[:1].lower() + text[1:]) if text else ():
        if (exact := catalog(tag).gettext(variant)) != variant:
            return exact
    for candidate in _patterns(tag):
        if matched := candidate.pattern.fullmatch(text):
            values = matched.groupdict()
            translated = {name: _value(tag, name, value) for name, value in values.items()}
            if candidate.is_short and any(
                _is_foreign(value, translated[name]) for name, value in values.items()
            ):
                continue
            return _GAP.sub("", _filled(tag, candidate, translated))
    return None


def _filled(tag: str, message: _MessagePattern, values: dict[str, str]) -> str:
    """Fill in the values. A full stop in the last value moves to the end of the sentence."""
    if not message.last or not _STOP.search(values[message.last]):
        return message.translation.format_map(values)
    unstopped = values | {message.last: values[message.last].removesuffix(".")}
    return message.translation.format_map(unstopped) + catalog(tag).gettext(".")


def _is_foreign(value: str, translated: str) -> bool:
    """Whether a value is an untranslated phrase of several words without digits."""
    return value == translated and bool(_WORDS.search(value)) and not re.search(r"\d", value)


def _value(tag: str, name: str, value: str) -> str:
    """Translate a value of a sentence, if it is our own text."""
    if value and (" " in value or name in _OURS):
        translated = _said(tag, value)
        if translated != value:
            return translated
    return _listed(tag, value) if name.rstrip("0123456789") in _SEVERAL else value


def _listed(tag: str, value: str) -> str:
    pair_template, last_template, more_template = map(catalog(tag).gettext, LIST_PATTERNS)
    first, separator, last = value.rpartition(" and ")
    joined = reduce(
        lambda one, other: pair_template % (one, other), (first if separator else value).split(", ")
    )
    if count := re.fullmatch(r"([\d,]+) more", last):
        return more_template % (joined, count[1]) if separator else value
    return last_template % (joined, last) if separator else joined


@lru_cache(maxsize=len(LANGUAGES))
def _patterns(tag: str) -> list[_MessagePattern]:
    """Return the patterns of messages with values, those with the most literal text first."""
    messages = catalog(tag)._catalog if tag != ENGLISH else {}  # type: ignore[attr-defined]  # noqa: SLF001 -- the only way to list them
    translations = [
        (message, translation)
        for message, translation in messages.items()
        if isinstance(message, str)
        and _HOLE.search(message)
        and _letters(message) >= _LEAST
        and translation
    ]
    translations.sort(key=lambda pair: -len(_HOLE.sub("", pair[0])))
    return [
        _MessagePattern(_pattern(message), translation, _letters(message) < _FEW, _last(message))
        for message, translation in translations
    ]


def _last(message: str) -> str:
    matched = re.search(r"\{(\w+)\}$", message)
    return matched[1] if matched else ""


def _letters(message: str) -> int:
    return sum(map(str.isalpha, _HOLE.sub("", message)))


def _pattern(message: str) -> re.Pattern[str]:
    seen_names: set[str] = set()

    def hole(match: re.Match[str]) -> str:
        name = match[1]
        is_repeated = name in seen_names
        seen_names.add(name)
        return f"(?P={name})" if is_repeated else f"(?P<{name}>.*?)"

    parts = re.split(r"(\{\w+\})", message)
    return re.compile(
        "".join(
            _HOLE.sub(hole, part) if _HOLE.fullmatch(part) else re.escape(part) for part in parts
        ),
        re.DOTALL,
    )
