"""The laws of the house, as tests. Each message says how to mend what broke it."""

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from studio.commands import docs
from studio.methods import METHODS, RECIPE_ADAPTER
from studio.recipe import yaml
from studio.recipe.fields import Section, field_spec, section_types
from studio.schemas.field_docs import field_descriptions
from tests.support.source_files import (
    MODULES,
    ROOT,
    SCRIPTS,
    TEMPLATES,
    TESTS,
    lines_of,
    module,
    name_of,
    nodes,
    text,
)

HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "optuna", "argon2")
NO_NOUNS = {"utils", "util", "common", "helpers", "helper", "core", "manager", "misc"}
REASONED = r"# (noqa: [A-Z0-9, ]+|type: ignore\[[a-z-]+\]) ?(--|#) \w|heavy import"
TAG = r"<[a-z](?:[^<>{]|{(?![{%])|{{.*?}}|{%.*?%})*>"
THIN_SPACE = r"[\u2009\u202f]|\\[uU](0{4})?(2009|202[fF])|(NARROW NO-BREAK|THIN) SPACE"
CATALOGUES = sorted((ROOT / "studio" / "locale").rglob("*.po"))
LATE = ("heavy import", "optional dependency")


def sections(kind: type[Section]) -> Iterator[type[Section]]:
    yield kind
    for field in kind.model_fields.values():
        for inner in section_types(field.annotation):
            yield from sections(inner)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def longer_than(limit: int, paths: Iterable[Path]) -> dict[str, int]:
    """Return the files that have more lines, with how many."""
    lengths = {name_of(path): len(text(path).splitlines()) for path in paths}
    return {name: lines for name, lines in lengths.items() if lines > limit}


# Each rule is one test of all files: as a test per file they took most of the time of a check.
def test_no_file_is_longer_than_500_lines() -> None:
    long = longer_than(500, [*MODULES, *TESTS, *SCRIPTS])

    assert long == {}, "Split it by noun, never into parts."


def test_no_template_is_longer_than_150_lines() -> None:
    assert longer_than(150, TEMPLATES) == {}, "Move widgets to macros."


def test_element_that_replaces_itself_has_an_id() -> None:
    nameless = {
        f"{name_of(path)}: {tag}"
        for path in TEMPLATES
        for tag in re.findall(TAG, text(path), re.DOTALL)
        if "hx-get=" in tag or "hx-post=" in tag
        if 'hx-swap="outer' in tag and "hx-target=" not in tag and " id=" not in tag
    }

    assert nameless == set(), "A morph gives an element without id another's place."


def test_no_function_is_longer_than_50_lines() -> None:
    long = {
        f"{name_of(path)}: {node.name}": length(node)
        for path in MODULES
        for node in functions(path)
        if length(node) > 50
    }

    assert long == {}, "A function either decides or does: part it."


def test_most_functions_are_short() -> None:
    lengths = sorted(length(node) for path in MODULES for node in functions(path))

    assert statistics.median(lengths) <= 8
    assert lengths[int(len(lengths) * 0.9)] <= 25


def test_every_module_has_docstring() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(module(path))] == []


def test_no_module_has_generic_name() -> None:
    named = [name_of(path) for path in MODULES if set(path.stem.split("_")) & NO_NOUNS]

    assert named == [], "Find the noun."


def test_at_most_three_handlers_catch_every_exception() -> None:
    broad = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and ast.unparse(node.type or ast.Name("")) == "Exception"
    ]

    assert len(broad) <= 3, "The runner, the speaker, the worker's isolation; no other."


def test_every_lint_suppression_has_reason() -> None:
    bare = [
        (place, line)
        for place, line in lines_of([*MODULES, *TESTS])
        if re.search(r"#\s*(noqa|type: ignore)", line)
        and not re.search(REASONED, line)
        and "re.search" not in line
    ]

    assert bare == [], "Write `# noqa: CODE -- why`."


def test_late_imports_give_reason() -> None:
    late = [
        (name_of(path), text(path).splitlines()[node.lineno - 1])
        for path in MODULES
        for function in functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]

    assert [(name, line) for name, line in late if not line.endswith(LATE)] == []


def test_web_and_worker_start_without_heavy_imports() -> None:
    code = (
        "import sys, studio.cli, studio.web.app, studio.worker.loop;"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_knob_has_label_and_help(method: object) -> None:
    recipe = next(one.recipe for one in METHODS.values() if one is method)
    bare = [
        f"{section.__name__}.{name}"
        for section in sections(recipe)
        for name, field in section.model_fields.items()
        if (knob := field_spec(field))
        and not (knob.label and field_descriptions(section).get(name))
    ]

    assert bare == []


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_trainer_and_example(name: str) -> None:
    folder = ROOT / "studio" / "methods" / name
    example = yaml.load((folder / "example.yaml").read_text(encoding="utf-8"))

    assert RECIPE_ADAPTER.validate_python(example, strict=False).method == name
    assert "def build(" in (folder / "trainer.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("knobs.md", docs.knobs),
        ("failures.md", docs.failures),
        ("openapi.json", docs.openapi),
    ],
)
def test_generated_reference_docs_are_current(name: str, made: object) -> None:
    assert callable(made)
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made(), "Run `make docs`."


def test_pages_load_nothing_from_external_hosts() -> None:
    fetched = [
        (name_of(path), address)
        for path in [*MODULES, *TEMPLATES, *SCRIPTS]
        for address in re.findall(r"(?:src|href|fetch|import)\W+https?://[\w.-]+", text(path))
    ]

    assert fetched == []


def test_only_formatters_group_digits() -> None:
    """One language has one thousands separator: `number_i18n.py` and `formatting.js` know it."""
    by_hand = [
        place
        for place, line in lines_of([*MODULES, *SCRIPTS, *TEMPLATES, *CATALOGUES])
        if re.search(THIN_SPACE, line) or re.search(r"toLocaleString|Intl\.NumberFormat\(", line)
        if not place.startswith("static/js/i18n/formatting.js:")
        if r'": r"\,"' not in line
    ]

    assert by_hand == [], "Use `number`, in scripts `short`."
