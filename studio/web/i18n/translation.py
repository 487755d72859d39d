"""Translate the finished English texts of services, settings and failures.

A message with values is recognised by the words around them: `{name} is not a number.` So
services need not know about languages. Text that is not recognised stays as it is.

The translation of a message says what its values are: `{name}` is data, or another message;
`{status:word}` may also be a single word of ours; `{size:number}` is a number, perhaps with a
unit; `{columns:list}` is a list: "a, b and c".
"""

import re
from functools import lru_cache, reduce
from typing import NamedTuple

from studio.web.i18n.locale import ENGLISH, LANGUAGES, catalog, current_language, is_english

SENTENCE_JOINS = ((": ", ": %s", ""), (" (", " (%s)", ")"))
"""How our text is followed by text of unknown origin, such as an error message."""

LIST_PATTERNS = ("%s, %s", "%s and %s", "%s and %s more")
"""How lists are written in a sentence: a, b and c; or a, b and 3 more."""

_VALUE = re.compile(r"\{(\w+)(?::(\w+))?\}")
_SENTENCE_BREAK = re.compile(r"(?<=[.!?]) (?=\S)")
_FULL_STOP = re.compile(r"(?<!\.)\.$")
_NAMES = re.compile(r"(\w+( \d+)?, )*\w+( \d+)? and \w+( \d+)?")
"""A list of single-word names, perhaps numbered."""
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"[-\u2212]?\d\S*( \S+)?")
_PERCENTAGE = re.compile(r"[-+\u2212]?\d\S* %")
"""A number, and perhaps its unit."""
_PHRASE = re.compile(r"[^\W\d_] | [^\W\d_]")
_WIDE = r"[\u2018-\u201d\u3001-\u9fff\uff00-\uffef]"
_GAP = re.compile(rf"(?<={_WIDE}) (?={_WIDE})")
"""A space between two wide characters, which Chinese does not use."""

_MAX_CHARS = 2000
"""Longer texts are not ours."""
_MIN_LETTERS = 3
"""Messages with fewer letters are not recognised, such as `{s} s`."""
_NUMBER_LETTERS = 4
"""A value that must be a number is as distinct as this many letters."""
_DISTINCT_LETTERS = 8
"""Parts of sentences with fewer letters are not recognised around an unknown phrase."""


class _Template(NamedTuple):
    """A message with values."""

    literals: list[str]
    """The text before, between and after the values."""
    names: list[str]
    translation: list[str]
    """Literal text, then the name and the kind of a value, then literal text, and so on."""

    @property
    def letters(self) -> int:
        return sum(map(str.isalpha, "".join(self.literals)))

    @property
    def is_distinct(self) -> bool:
        """Whether it has many letters, is a whole sentence, or continues one."""
        first, last = self.literals[0], self.literals[-1]
        letters = self.letters + _NUMBER_LETTERS * self.translation.count("number")
        return (
            letters >= _DISTINCT_LETTERS
            or last.endswith((".", "?"))
            or first.startswith((" ", ",", ";"))
        )

    def match(self, text: str) -> dict[str, str] | None:
        """Return the values of a text that was made from this message, or None."""
        first, *between, last = self.literals
        if not (text.startswith(first) and text.endswith(last, len(first))):
            return None
        values, rest = [], text[len(first) :].removesuffix(last)
        for literal in between:
            value, found, rest = rest.partition(literal)
            if not found:
                return None
            values.append(value)
        return dict(zip(self.names, [*values, rest], strict=True))


def translate(text: str) -> str:
    """Translate an English text into the language of this request."""
    if is_english() or not text:
        return text
    translated = _translate(current_language(), str(text))
    # Return the original object if nothing was translated: it may be safe Markup.
    return text if translated == text else translated


def translate_value(value: object) -> object:
    """Translate a template value if it is text."""
    return translate(value) if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _translate(tag: str, text: str) -> str:
    if len(text) > _MAX_CHARS:
        return text
    return (
        _sentences(tag, text) or _message(tag, text) or _message_and_unknown_rest(tag, text) or text
    )


def _sentences(tag: str, text: str) -> str | None:
    """Translate several messages with a space between them."""
    for end in _SENTENCE_BREAK.finditer(text):
        first, rest = text[: end.start()], text[end.end() :]
        if (translated := _sentence(tag, first)) is not None:
            others = _sentences(tag, rest) or _message(tag, rest)
            if others is not None:
                return translated + others
    return None


def _sentence(tag: str, text: str) -> str | None:
    """Translate a message that others follow; it may end with something in parentheses."""
    translated = _message(tag, text)
    if translated is None and text.endswith(")."):
        return _message_and_unknown_rest(tag, text)
    return translated


def _message_and_unknown_rest(tag: str, text: str) -> str | None:
    """Translate the message before a colon or parenthesis, and the rest if possible."""
    body, stop = _split_full_stop(tag, text)
    for opening, template, closing in SENTENCE_JOINS:
        head, separator, rest = body.removesuffix(closing).partition(opening)
        translated = _message(tag, head) if separator and body.endswith(closing) else None
        if translated is None:
            continue
        join = catalog(tag).gettext(template)
        if stop and not closing and (sentence := _message(tag, f"{rest}.")) is not None:
            return translated + join % sentence
        kind = "list" if _NAMES.fullmatch(rest) else ""
        return translated + join % _value(tag, kind, rest) + stop
    return None


def _message(tag: str, text: str) -> str | None:
    """Translate one message, or its text with a full stop; None if it is not in the catalogue."""
    translated = _exact_or_filled(tag, text)
    if translated is None:
        body, stop = _split_full_stop(tag, text)
        part = _exact_or_filled(tag, body) if stop else None
        return part and part + stop
    return translated


def _split_full_stop(tag: str, text: str) -> tuple[str, str]:
    """Return a text without its final full stop, and this full stop in the other language."""
    return (text[:-1], catalog(tag).gettext(".")) if _FULL_STOP.search(text) else (text, "")


def _exact_or_filled(tag: str, text: str) -> str | None:
    for variant in (text, text[:1].lower() + text[1:]) if text else ():
        if (exact := catalog(tag).gettext(variant)) != variant:
            return exact
    for template in _templates(tag):
        values = template.match(text)
        if values is not None and (filled := _fill(tag, template, values)) is not None:
            return filled
    return None


def _fill(tag: str, template: _Template, values: dict[str, str]) -> str | None:
    """Fill values into a translation; None if they do not fit the message.

    A full stop at the end of the last value ends the whole sentence.
    """
    pieces = [*template.translation]
    kinds = dict(zip(pieces[1::3], pieces[2::3], strict=True))
    translated = {name: _value(tag, kinds[name], value) for name, value in values.items()}
    for name, value in values.items():
        if kinds[name] == "number" and not _NUMBER.fullmatch(value):
            return None
        if not template.is_distinct and value == translated[name] and _is_phrase(value):
            return None
    stop, last = "", template.names[-1]
    if not template.literals[-1]:
        translated[last], stop = _split_full_stop(tag, translated[last])
    pieces[1::3] = [translated[name] for name in pieces[1::3]]
    pieces[2::3] = [""] * len(pieces[2::3])
    return reduce(_join, pieces) + stop


def _is_phrase(value: str) -> bool:
    """Whether it has several words and no digits."""
    return bool(_PHRASE.search(value)) and not _DIGIT.search(value)


def _value(tag: str, kind: str, value: str) -> str:
    if kind == "list":
        return _list(tag, value)
    if _PERCENTAGE.fullmatch(value):
        return value.replace(" ", "")
    return _translate(tag, value) if " " in value or kind == "word" else value


def _list(tag: str, value: str) -> str:
    pair_template, last_template, more_template = map(catalog(tag).gettext, LIST_PATTERNS)
    first, separator, last = value.rpartition(" and ")
    items = (first if separator else value).split(", ")
    joined = reduce(
        lambda one, other: pair_template % (one, other), (_value(tag, "", one) for one in items)
    )
    if not separator:
        return joined
    if count := re.fullmatch(r"([\d,]+) more", last):
        return more_template % (joined, count[1])
    return last_template % (joined, _value(tag, "", last))


def _join(text: str, piece: str) -> str:
    return text[:-2] + _GAP.sub("", text[-2:] + piece[:2]) + piece[2:]


@lru_cache(maxsize=len(LANGUAGES))
def _templates(tag: str) -> list[_Template]:
    """Return the messages with values, those with the most literal text first."""
    messages = catalog(tag)._catalog if tag != ENGLISH else {}  # type: ignore[attr-defined]  # noqa: SLF001 -- the only way to list them
    templates = [
        _Template((parts := _VALUE.split(message))[::3], parts[1::3], _VALUE.split(translation))
        for message, translation in messages.items()
        if isinstance(message, str) and translation and _VALUE.search(message)
    ]
    templates = [one for one in templates if one.letters >= _MIN_LETTERS]
    return sorted(templates, key=lambda one: -len("".join(one.literals)))
