"""Plain, present-day English wherever somebody reads: words that do not appear, and what to write.

NAMES and sentences here once read like a translation. The list holds words that only such
sentences have; each names what to write instead.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.source_files import (
    MIGRATIONS,
    MODULES,
    ROOT,
    SCRIPTS,
    STYLES,
    TEMPLATES,
    name_of,
    nodes,
    text,
)

AVOID = {
    r"anew": "again, or drop it",
    r"whoever|whomever|whichever way": "the user, the caller, anyone who",
    r"lest": "so that … not",
    r"borne|bears|befell|befalls?": "handled, carried, happened",
    r"nobody": "no one, or turn the sentence round",
    r"(?:is|are|was|were|be|been|being) told": "shows, reports, tells you",
    r"is said to be|be it|as ever|of old|in good order": "drop it",
    r"for want of": "without",
    r"parted by": "separated by",
    r"thereof|thereby|whence|hence|thence|hitherto|henceforth|wherein": "say it directly",
    r"mend(?:s|ed|ing)?": "fix",
    r"begun": "started",
    r"gone on with|goes on with|go on with": "continue, resume",
    r"learnt": "trained on, learned",
    r"of its own accord": "by itself",
    r"would-be|so to speak|as it were": "drop it",
}
_AVOID = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in AVOID)})\b", re.IGNORECASE)

_EXPRESSION = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_STRING = re.compile(r'"[^"]*"')

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]


def test_texts_are_plain() -> None:
    assert list(avoided({path: text(path) for path in [*DOCUMENTS, *SCRIPTS, *STYLES]})) == []


def test_templates_are_plain() -> None:
    strings = {
        path: _EXPRESSION.sub(lambda code: " ".join(_STRING.findall(code[0])), text(path))
        for path in TEMPLATES
    }

    assert list(avoided(strings)) == []


def test_docstrings_comments_and_messages_are_plain() -> None:
    texts = {path: "\n".join(_written(path)) for path in [*MODULES, *MIGRATIONS]}

    assert list(avoided(texts)) == []


def _written(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    yield from re.findall(r"(?m)(?:^|\s)#(.*)$", text(path))


def avoided(texts: dict[Path, str]) -> Iterator[str]:
    """Yield each word to avoid, with its file and what to write instead."""
    for path, written in texts.items():
        for match in _AVOID.finditer(written):
            instead = list(AVOID.values())[(match.lastindex or 1) - 1]
            yield f"{name_of(path)}: “{match[0]}”: write “{instead}”"
