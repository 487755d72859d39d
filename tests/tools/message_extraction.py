"""Messages that pages show, found in the source of modules: sentences, titles, and knobs.

Pages translate them with the filter `translated`, so modules need not mark them. A value in a
message becomes a hole with a name: `{name} is not a number.`
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import get_args

from studio.db.accounts import Role
from studio.db.owners import Actor
from studio.db.states import EndpointState, RunStatus, SweepStatus, TaskStatus
from studio.intake.detection.row_shapes import KIND_NAMES
from studio.methods import METHODS
from studio.protocols.events import PHASES, Quantity
from studio.recipe.fields import FieldReference, Section, field_references, section_types
from studio.recipe.precision import PRECISIONS
from studio.services.datasets import token_stats
from studio.services.search import palette_search
from studio.starter.samples import SAMPLES
from studio.web.help import help_page
from studio.web.i18n.locale import PHRASE_CALL
from studio.web.i18n.translation import LIST_PATTERNS, SENTENCE_JOINS
from studio.web.runs import run_table
from studio.web.studies import study_page

SOURCES = (
    *("studio/web", "studio/services", "studio/intake", "studio/recipe", "studio/weights"),
    *("studio/methods", "studio/training", "studio/runner", "studio/evaluation", "studio/graders"),
    *("studio/engines", "studio/data_sources.py", "studio/failure_codes.py", "studio/hardware.py"),
    "studio/hardware_usage/gpu_sensors.py",
    *("studio/metrics.py", "studio/network/hub_client.py", "studio/network/hub_uploads.py"),
    *("studio/network/safe_http.py", "studio/network/safe_streams.py"),
    "studio/protocols/chat_endpoints.py",
    *("studio/protocols/endpoint_client.py", "studio/protocols/grader_judges.py"),
    *("studio/protocols/tasks.py", "studio/schemas/validation_errors.py"),
    "studio/trackers/table.py",
)
"""Parts of the package with texts that pages show."""

EXCLUDED = (
    *("studio/web/api", "studio/web/app.py", "studio/web/openapi_extras.py"),
    *("studio/web/auth/permissions.py", "studio/web/auth/template_permissions.py"),
    "studio/web/auth/security_headers.py",
    *("studio/web/rendering/render.py", "studio/web/rendering/static_files.py"),
    *("studio/web/compare/comparison_export.py", "studio/web/reports/report_file.py"),
    *("studio/web/experiments/code_snippets.py", "studio/web/help/style_page.py"),
    *("studio/web/http/api_access.py", "studio/web/playground/code_snippets.py"),
    "studio/web/http/row_files.py",
    "studio/web/i18n/number_i18n.py",
    *("studio/services/openai", "studio/services/accounts/idempotency_keys.py"),
    *("studio/services/operations/backup", "studio/services/operations/restores.py"),
    *("studio/services/operations/home.py", "studio/services/storage/locks.py"),
    *("studio/training/model_card.py", "studio/weights/encoder_layers.py"),
    *("studio/evaluation/judge_prompts.py", "studio/graders/programs.py"),
    *("studio/training/load_examples.py", "studio/training/sentence_files.py"),
    "studio/training/export/export_report.py",
    *("studio/training/export/gguf/llama_cpp.py", "studio/training/export/gguf/modelfile.py"),
    *("studio/training/export/gguf/quantisation.py", "studio/training/export/gguf/turns.py"),
    *("studio/training/export/gguf/vocabulary.py", "studio/training/export/gguf/writer.py"),
    "studio/training/export/quantised/writer.py",
    "studio/services/recipe_scripts/training_script.py",
)
"""How the paths of those begin whose texts are for programs, terminals or downloaded files."""

WORDS = re.compile(r"[A-Za-z}\d.,:;)”'\"] [A-Za-z{(“\d]")
TITLE = re.compile(r"[A-Z][a-z]*(-[a-z]+)?")
_SENTENCE = re.compile(r"[A-Z`{].*[.?] ?")
_TECHNICAL = re.compile(
    r"[<>\\]|\w=|/\w+/|^[#-]|\{\}|\w\|\w|Mapping\[|\}/\{|Errno"
    r"|^(python|studio|GET|Basic|Bearer|openid|import|def) "
)
"""What texts contain that are not for people, unless they are whole sentences."""
_MIN_LETTERS = 3
"""Messages with values and fewer letters are not recognised."""

CHOICES = frozenset({"warn", "stop", "rollback", "group_by_length", "random", "sequential"})
"""Names of choices that are words; others are names that everybody uses."""

_IGNORED_CALLS = frozenset({"Field", "encode", "get", "info", "removeprefix"})
"""Calls with arguments that no page shows."""

_CATALOGUE_CALLS = frozenset({"gettext", "ngettext"})
"""Calls with arguments that are messages, whatever they look like."""

_STATES = (RunStatus, TaskStatus, SweepStatus, EndpointState, Role)


def find_messages(root: Path) -> Iterator[tuple[str, str | tuple[str, str]]]:
    """Yield each file and message that pages may show, except those of templates."""
    yield from _declared_texts()
    for path in sorted((root / "static" / "js").rglob("*.js")):
        where = path.relative_to(root).as_posix()
        yield from ((where, text) for text in PHRASE_CALL.findall(path.read_text(encoding="utf-8")))
    for part in SOURCES:
        for path in _modules(root / part):
            where = path.relative_to(root).as_posix()
            if not where.startswith(EXCLUDED):
                for message in _MessageCollector.messages_of(path):
                    yield where, message


def is_message(text: str) -> bool:
    """Whether this is a sentence or a title with enough letters to be recognised."""
    if _TECHNICAL.search(text) and not _SENTENCE.fullmatch(text):
        return False
    literal = re.sub(r"\{\w+\}", "", text)
    has_words = bool(WORDS.search(text) or TITLE.fullmatch(text))
    return has_words and sum(map(str.isalpha, literal)) >= (_MIN_LETTERS if literal != text else 2)


def _modules(path: Path) -> Iterable[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _declared_texts() -> Iterator[tuple[str, str]]:
    """Yield the texts of each knob, precision and method, with the file that declares it."""
    for section in _sections():
        yield _where(section), _intro(section)
    for entry in (one for method in METHODS.values() for one in field_references(method.recipe)):
        where = _where(entry.section)
        yield from ((where, text) for text in _knob_texts(entry) if re.search("[A-Za-z]{2}", text))
    patterns = (*(pattern for _opening, pattern, _closing in SENTENCE_JOINS), *LIST_PATTERNS)
    yield from (("studio/web/i18n/translation.py", one) for one in patterns)
    yield from (
        ("studio/web/runs/run_table.py", form)
        for form in run_table.AGGREGATE_SUFFIXES.values()
        if form
    )
    yield from _single_words()
    for mode in PRECISIONS.values():
        yield from (("studio/recipe/precision.py", one) for one in (mode.title, mode.summary))
    yield from (("studio/starter/samples.py", about) for about in SAMPLES.values())
    for method in METHODS.values():
        yield f"studio/methods/{method.recipe.__module__.split('.')[2]}/__init__.py", method.summary


def _single_words() -> Iterator[tuple[str, str]]:
    """Yield words that stand alone."""
    for state in (one for states in _STATES for one in states):
        yield _where(type(state)), state.value
    for quantity_or_phase in (*PHASES, *get_args(Quantity)):
        yield "studio/protocols/events.py", quantity_or_phase
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


def _knob_texts(entry: FieldReference) -> Iterator[str]:
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


class _MessageCollector(ast.NodeVisitor):
    """Collects the messages of a module."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """All texts, with holes for their values."""
        self.messages: list[str | tuple[str, str]] = []
        """Arguments of catalogue calls; pairs are a singular and a plural."""

    @classmethod
    def messages_of(cls, path: Path) -> list[str | tuple[str, str]]:
        collector = cls()
        collector.visit(ast.parse(path.read_text(encoding="utf-8")))
        return [*collector.messages, *filter(is_message, collector.texts)]

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.texts.append(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        seen: Counter[str] = Counter()
        self.texts.append("".join(_part(one, seen) for one in node.values))
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                self.visit(one.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in _CATALOGUE_CALLS:
            texts = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
            self.messages += [(texts[0], texts[1])] if len(texts) > 1 else texts
        elif name not in _IGNORED_CALLS:
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

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)


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
