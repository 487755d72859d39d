"""Words that a template says by itself, in one language: none should be left."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from jinja2 import Environment, nodes

TOLD = frozenset({"_", "gettext", "ngettext"})
SHOWN = frozenset({"title", "aria-label", "placeholder", "alt", "data-title"})
"""Attributes that people read, or hear."""

NAMES = frozenset(
    {
        *(
            "ChatML",
            "Python",
            "Markdown",
            "LaTeX",
            "OpenAI",
            "Mantissa Studio",
            "Ctrl K",
            "After training",
        ),
        *("small danger", "quiet danger", "support tone"),
    }
)
"""What is called so in every language, or is no word: classes of style, an example of a search."""

_HIDDEN = frozenset({"script", "style", "code", "pre"})
_WORD = re.compile(r"[A-Za-z]{2}")
_SENTENCE = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2}|^[A-Z][a-z]+")
_TECHNICAL = re.compile(r"[<>=/#]|^M\d")
_TRANSLATED = re.compile(r"\{%[-+ ]*trans\b.*?\{%[-+ ]*endtrans[-+ ]*%\}", re.DOTALL)
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_MARKUP = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_ATTRIBUTES = re.compile(r"=\"|^-")
"""What a macro draws that draws attributes alone."""


def untranslated_texts(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    return [*_texts(source), *_strings(source)]


def is_early(path: Path) -> bool:
    """Whether a file of macros asks the catalogue for something outside of them."""
    tree = _parsed(path.read_text(encoding="utf-8"))
    if path.parent.name != "macros":
        return False
    beside = (one for one in tree.body if not isinstance(one, nodes.Macro))
    calls = (call.node for one in beside for call in one.find_all(nodes.Call))
    return any(isinstance(called, nodes.Name) and called.name in TOLD for called in calls)


def _texts(source: str) -> list[str]:
    """Return what stands in the text of a page, or in an attribute that people read."""
    bare = _COMMENT.sub("", _TRANSLATED.sub("", source))
    reader = _Reader()
    reader.feed(_MARKUP.sub(" ", bare))
    told = (text for text in reader.found if _WORD.search(text) and text not in NAMES)
    return [text for text in told if not _ATTRIBUTES.search(text)]


def _strings(source: str) -> list[str]:
    """Return sentences written as strings that nobody asks the catalogue for."""
    tree = _parsed(source)
    asked = {id(one) for call in tree.find_all(nodes.Call) for one in _asked(call)}
    return [
        one.value
        for one in tree.find_all(nodes.Const)
        if isinstance(one.value, str)
        and id(one) not in asked
        and _SENTENCE.search(one.value)
        and not _TECHNICAL.search(one.value)
        and one.value not in NAMES
    ]


def _parsed(source: str) -> nodes.Template:
    return Environment(extensions=["jinja2.ext.i18n"], autoescape=True).parse(source)


def _asked(call: nodes.Call) -> Iterator[nodes.Const]:
    if isinstance(call.node, nodes.Name) and call.node.name in TOLD:
        yield from (one for one in call.args if isinstance(one, nodes.Const))


class _Reader(HTMLParser):
    """Collects what a person reads of a page without its values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [_plain(value or "") for name, value in attrs if name in SHOWN]
        if tag in _HIDDEN:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.found.append(_plain(data))


def _plain(text: str) -> str:
    return text.strip(" \n·")
