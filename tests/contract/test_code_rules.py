"""The laws of the house, as tests. Each message says how to mend what broke it."""

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from studio.commands import docs
from studio.methods import METHODS, RECIPE_ADAPTER
from studio.recipe import yaml
from studio.recipe.fields import Section, field_spec, section_types
from studio.schemas.field_docs import field_descriptions

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "studio").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static" / "js").rglob("*.js"))

HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "optuna", "argon2")
NO_NOUNS = {"utils", "util", "common", "helpers", "helper", "core", "manager", "misc"}
REASONED = r"# (noqa: [A-Z0-9, ]+|type: ignore\[[a-z-]+\]) ?(--|#) \w|heavy import"
LATE = ("heavy import", "optional dependency")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sections(kind: type[Section]) -> Iterator[type[Section]]:
    yield kind
    for field in kind.model_fields.values():
        for inner in section_types(field.annotation):
            yield from sections(inner)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


@pytest.mark.parametrize("path", [*MODULES, *TESTS, *SCRIPTS], ids=name_of)
def test_no_file_holds_two_nouns(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())

    assert lines <= 500, "Split it by noun, never into parts."


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_no_template_outgrows_the_eye(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150, "Move widgets to macros."


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_function_outgrows_the_eye(path: Path) -> None:
    long = [f"{node.name}: {length(node)}" for node in functions(path) if length(node) > 50]

    assert long == [], "A function either decides or does: part it."


def test_most_functions_are_short() -> None:
    lengths = sorted(length(node) for path in MODULES for node in functions(path))

    assert statistics.median(lengths) <= 8
    assert lengths[int(len(lengths) * 0.9)] <= 25


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_lives_there(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_is_named_for_its_kind(path: Path) -> None:
    assert set(path.stem.split("_")).isdisjoint(NO_NOUNS), "Find the noun."


def test_only_three_places_catch_everything() -> None:
    broad = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and ast.unparse(node.type or ast.Name("")) == "Exception"
    ]

    assert len(broad) <= 3, "The runner, the speaker, the worker's isolation; no other."


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_every_exception_to_a_rule_has_a_reason(path: Path) -> None:
    bare = [
        line.strip()
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"#\s*(noqa|type: ignore)", line)
        and not re.search(REASONED, line)
        and "re.search" not in line
    ]

    assert bare == [], "Write `# noqa: CODE -- why`."


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_late_import_says_why(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    late = [
        lines[node.lineno - 1]
        for function in functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]

    assert [line for line in late if not line.endswith(LATE)] == []


def test_the_web_and_the_worker_start_without_what_is_heavy() -> None:
    code = (
        "import sys, studio.cli, studio.web.app, studio.worker.loop;"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_knob_has_a_label_and_help(method: object) -> None:
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
def test_every_method_has_a_trainer_and_an_example(name: str) -> None:
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
def test_the_written_reference_is_fresh(name: str, made: object) -> None:
    assert callable(made)
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made(), "Run `make docs`."


@pytest.mark.parametrize("path", [*MODULES, *TEMPLATES, *SCRIPTS], ids=name_of)
def test_nothing_is_fetched_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert re.findall(r"(?:src|href|fetch|import)\W+https?://[\w.-]+", text) == []
