"""What modules say on pages, found in their source: sentences, titles, and every knob's words.

A page shows these by the filter `said`; nothing has to be marked where it is written. A value in
a sentence becomes a hole with a name: `{name} is no number.`
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path

from studio.db.accounts import Role
from studio.db.owners import Actor
from studio.db.states import RunStatus, SweepStatus, TaskStatus
from studio.intake.detection.row_shapes import KIND_NAMES
from studio.methods import METHODS
from studio.protocols.events import PHASES
from studio.recipe.fields import FieldReference, Section, field_references, section_types
from studio.recipe.precision import PRECISIONS
from studio.services.datasets import token_stats
from studio.services.search import palette_search
from studio.web.help import help_page
from studio.web.i18n.locale import PHRASE_CALL
from studio.web.i18n.translation import LIST_PATTERNS, SENTENCE_JOINS
from studio.web.runs import run_table
from studio.web.studies import study_page

SPEAKING = (
    *("studio/web", "studio/services", "studio/intake", "studio/recipe", "studio/weights"),
    *("studio/methods", "studio/training", "studio/runner"),
    *(
        f"studio/{name}.py"
        for name in (
            *("data_sources", "failure_codes", "hardware", "metrics", "network/hub_client"),
            *("network/safe_http", "protocols/tasks", "schemas/validation_errors"),
        )
    ),
)
"""Parts of the package that say something a page shows."""

ELSEWHERE = frozenset(
    {
        *(
            "web/api",
            "web/app.py",
            "web/compare/comparison_export.py",
            "web/openapi_extras.py",
            "web/i18n/number_i18n.py",
            "web/rendering/static_files.py",
        ),
        *(
            "web/auth/permissions.py",
            "web/rendering/render.py",
            "web/auth/template_permissions.py",
            "web/auth/security_headers.py",
        ),
        "web/experiments/code_snippets.py",
        *(
            "web/i18n/translation.py",
            "web/middleware/request_guard.py",
            "web/runs/table_export.py",
            "web/i18n/locale.py",
            "web/middleware/request_metrics.py",
        ),
        *(
            "web/http/multipart_upload.py",
            "web/http/event_hub.py",
            "web/help/style_page.py",
            "services/operations/backup_format.py",
            "services/operations/backups.py",
        ),
        *(
            "services/operations/prometheus_metrics.py",
            "services/openai/",
            "services/accounts/idempotency_keys.py",
            "services/operations/home.py",
            "services/storage/locks.py",
            "services/operations/restores.py",
        ),
        *("training/model_card.py", "recipe/yaml.py"),
    }
)
"""Parts of these that speak to programs, to terminals, or in files that are handed on."""

WORDS = re.compile(r"[A-Za-z}\d.,:;)”'\"] [A-Za-z{(“\d]")
TITLE = re.compile(r"[A-Z][a-z]*(-[a-z]+)?")
_TECHNICAL = re.compile(
    r"[<>\\]|\w=|\b(SELECT|PRAGMA|FROM|GLOB)\b|/\w+/|%[sd(]|__|^[#-]|^Value error|\{\}|\w\|\w"
    r"|^(python|studio|GET|Basic|openid) |^\{\w+\}, \{\w+\}$|\}/\{|Errno|^Bearer "
)
_LEAST = 3
"""Letters around values by which a sentence is known among others."""

CHOICES = frozenset({"warn", "stop", "rollback", "group_by_length", "random", "sequential"})
"""Names of choices that are words; others are names that everybody uses."""

_SILENT = frozenset(
    {
        *("log", "debug", "info", "warning", "exception", "compile", "sub", "match", "search"),
        *("fullmatch", "execute", "Option", "Argument", "Field", "getLogger", "getattr", "setattr"),
        *("encode", "AssertionError", "TypeError", "RuntimeError", "KeyError", "APIRouter", "get"),
        *("post", "put", "patch", "delete", "Header", "Response", "removeprefix"),
    }
)
"""Calls whose words no page shows."""

_TOLD = frozenset({"gettext", "ngettext"})
_STATES = (RunStatus, TaskStatus, SweepStatus, Role)


def all_of(root: Path) -> Iterator[tuple[str, str | tuple[str, str]]]:
    """Yield the file that says something, and what it says, as far as pages show it."""
    yield from _declared()
    for path in sorted((root / "static" / "js").rglob("*.js")):
        where = path.relative_to(root).as_posix()
        yield from ((where, text) for text in PHRASE_CALL.findall(path.read_text(encoding="utf-8")))
    for part in SPEAKING:
        for path in _modules(root / part):
            where = path.relative_to(root).as_posix()
            if not any(where.startswith(f"studio/{one}") for one in ELSEWHERE):
                for said in _Sayings.of(path):
                    yield where, said


def is_said(text: str) -> bool:
    """Whether this is a sentence or a title that can be told again, and nothing technical."""
    if _TECHNICAL.search(text):
        return False
    bare = re.sub(r"\{\w+\}", "", text)
    has_words = bool(WORDS.search(text) or TITLE.fullmatch(text))
    return has_words and sum(map(str.isalpha, bare)) >= (_LEAST if bare != text else 2)


def _modules(path: Path) -> Iterable[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _declared() -> Iterator[tuple[str, str]]:
    """Yield what is said of each knob, precision and method where it is declared."""
    for section in _sections():
        yield _where(section), _intro(section)
    for entry in (one for method in METHODS.values() for one in field_references(method.recipe)):
        where = _where(entry.section)
        yield from ((where, text) for text in _of_knob(entry) if re.search("[A-Za-z]{2}", text))
    joints = (*(between for _opens, between, _closes in SENTENCE_JOINS), *LIST_PATTERNS)
    yield from (("studio/web/i18n/translation.py", one) for one in joints)
    yield from (
        ("studio/web/runs/run_table.py", form)
        for form in run_table.AGGREGATE_SUFFIXES.values()
        if form
    )
    yield from _terms()
    for mode in PRECISIONS.values():
        yield from (("studio/recipe/precision.py", one) for one in (mode.title, mode.summary))
    for method in METHODS.values():
        yield f"studio/methods/{method.recipe.__module__.split('.')[2]}/__init__.py", method.summary


def _terms() -> Iterator[tuple[str, str]]:
    """Yield words that stand alone."""
    for state in (one for states in _STATES for one in states):
        yield _where(type(state)), state.value
    yield from (("studio/protocols/events.py", phase) for phase in PHASES)
    for status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        yield "studio/web/http/errors.py", status.phrase
    yield from (("studio/intake/detection/row_shapes.py", word) for word in KIND_NAMES.values())
    yield from (
        ("studio/services/datasets/token_stats.py", word)
        for word in token_stats.PART_NAMES.values()
    )
    for words in (
        study_page.STATE_LABELS,
        study_page.INCIDENT_LABELS,
        study_page.VERSUS_LABELS,
    ):
        yield from (
            ("studio/web/studies/study_page.py", word) for word in words.values() if word.isascii()
        )
    yield _where(Actor), Actor().name
    for about in (
        *palette_search._TEXT_SIGNS.values(),
        *palette_search._NUMBER_SIGNS.values(),
        *palette_search._FLAG_TITLES.values(),
    ):
        yield _where(palette_search.Suggestion), about


def _where(declared: type) -> str:
    return declared.__module__.replace(".", "/") + ".py"


def _of_knob(entry: FieldReference) -> Iterator[str]:
    yield from (
        entry.knob.label,
        entry.knob.unit,
        entry.help,
        entry.allowed_values,
        help_page.section_title(entry),
    )
    yield from (title for title in entry.knob.choice_titles.values() if title.isascii())
    yield from (choice for choice in entry.choices if choice in CHOICES)


def _sections() -> Iterator[type[Section]]:
    waiting: list[type[Section]] = [method.recipe for method in METHODS.values()]
    while waiting:
        section = waiting.pop()
        yield section
        for info in section.model_fields.values():
            waiting += section_types(info.annotation)


def _intro(section: type[Section]) -> str:
    return (section.__doc__ or "").partition("\n\n")[0].strip()


class _Sayings(ast.NodeVisitor):
    """Collects what a module says."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.told: list[str | tuple[str, str]] = []
        """What is asked of the catalogue by name."""

    @classmethod
    def of(cls, path: Path) -> list[str | tuple[str, str]]:
        visitor = cls()
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        return [*visitor.told, *(one for one in visitor.found if is_said(one))]

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        seen: Counter[str] = Counter()
        self.found.append("".join(_part(one, seen) for one in node.values))
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                self.visit(one.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _name(node.func) in _TOLD:
            said = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
            self.told += [(said[0], said[1])] if len(said) > 1 else said
        elif _name(node.func) == "enter":
            self.told += [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
        elif _name(node.func) not in _SILENT:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for one in node.body:
            self.visit(one)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(_name(target) == "SAVED_AS" for target in node.targets):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if _name(node.target) != "SAVED_AS":
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Pass over it: it speaks to whoever reads the code."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Pass over it: what is compared is no word for a page."""


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _part(node: ast.expr, seen: Counter[str]) -> str:
    """Return a piece of text, or a hole of its own name."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    inner = ast.walk(node.value) if isinstance(node, ast.FormattedValue) else ()
    names = (_name(one) for one in inner if isinstance(one, ast.Attribute | ast.Name))
    name = next(names, "value").strip("_").lower()
    seen[name] += 1
    return f"{{{name}{seen[name] if seen[name] > 1 else ''}}}"
