"""The project's files, each read and parsed once per process, for tests of how they are written."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "studio").rglob("*.py"))
MIGRATIONS = sorted((ROOT / "migrations").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static" / "js").rglob("*.js"))
STYLES = sorted((ROOT / "static" / "css").glob("*.css"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a module, the module itself first."""
    return tuple(ast.walk(ast.parse(text(path))))


def module(path: Path) -> ast.Module:
    first = nodes(path)[0]
    assert isinstance(first, ast.Module)
    return first


def lines_of(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield each line without its indent, with the file and the number of the line."""
    for path in paths:
        for number, line in enumerate(text(path).splitlines(), start=1):
            yield f"{name_of(path)}:{number}", line.strip()
