"""Plain, present-day English wherever somebody reads: words that do not appear, and what to write.

NAMES and sentences here once read like a translation. The list holds words that only such
sentences have; each names what to write instead.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

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

DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    if path.name != "LICENSE"
)
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted(
    [*(ROOT / "static" / "js").rglob("*.js"), *(ROOT / "static" / "css").glob("*.css")]
)
MODULES = sorted([*(ROOT / "studio").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")])


@pytest.mark.parametrize("path", [*DOCUMENTS, *TEMPLATES, *SCRIPTS], ids=lambda path: path.name)
def test_texts_are_plain(path: Path) -> None:
    text = path.read_text("utf-8")
    if path.suffix == ".html":
        text = _EXPRESSION.sub(lambda code: " ".join(_STRING.findall(code[0])), text)

    assert list(avoided(text)) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_docstrings_comments_and_messages_are_plain(path: Path) -> None:
    source = path.read_text("utf-8")
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts += re.findall(r"(?m)(?:^|\s)#(.*)$", source)

    assert [found for text in texts for found in avoided(text)] == []


def avoided(text: str) -> Iterator[str]:
    """Yield each word to avoid, with what to write instead."""
    for match in _AVOID.finditer(text):
        instead = list(AVOID.values())[(match.lastindex or 1) - 1]
        yield f"“{match[0]}”: write “{instead}”"
