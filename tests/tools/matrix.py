"""Which tests of the matrix are due: those that repeat what an unmarked test shows for one case.

A test marked `matrix` shows for one more model, number format, moment of a kill or page what
another test shows on each push. It runs with `--matrix`, and when something it depends on has
changed since the whole matrix last passed: the training code, the pinned packages, the test's own
file, or a path that the mark names (`@pytest.mark.matrix("README.md")`).

`make test-all` runs everything, and if all passes, `python -m tests.tools.matrix` records what it
passed with in `tests/matrix.sha256`.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = "tests/matrix.sha256"
"""Fingerprints of everything with which the whole matrix last passed: one per line, and of what."""

CODE = (
    *("studio/training", "studio/methods", "studio/runner", "studio/worker/processes"),
    *("studio/recipe/precision.py", "studio/recipe/quantised.py", "studio/metrics.py"),
    "constraints.txt",
)
"""What every test of the matrix depends on."""

_MARKED = re.compile(r"mark\.matrix\b|\bcovering\(")
_NAMED = re.compile(r"(?:mark\.matrix|\bcovering)\(([^()]*)\)")


class Fingerprints:
    """Fingerprints of files and folders, each made once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.known: dict[str, str] = {}

    def get(self, name: str) -> str:
        """Return the SHA-256 of a file, or of a folder with all files in it.

        Comments, docstrings and the layout of Python files do not count.

        Raises:
            FileNotFoundError: There is none. Without this, a renamed folder would never be due.

        """
        if name not in self.known:
            digest = hashlib.sha256()
            for path in _files(self.root / name):
                relative = path.relative_to(self.root).as_posix()
                digest.update(f"{relative}\n{_content(path)}\n".encode())
            self.known[name] = digest.hexdigest()
        return self.known[name]

    def changed(self, names: Iterable[str]) -> set[str]:
        """Return which of these have changed since the whole matrix last passed, or are new."""
        record = self.root / RECORD
        lines = record.read_text("utf-8").splitlines() if record.exists() else []
        kept = {name: sha for sha, name in (line.split("  ", 1) for line in lines)}
        return {name for name in names if kept.get(name) != self.get(name)}

    def write(self) -> None:
        names = sorted(dependencies(self.root))
        text = "".join(f"{self.get(name)}  {name}\n" for name in names)
        (self.root / RECORD).write_text(text, "utf-8")


def outline(source: str) -> str:
    """Write out the syntax tree, alike in every Python: without docstrings and what is empty."""
    return _outline(ast.parse(source))


def _outline(node: object) -> str:
    if isinstance(node, list):
        return f"[{','.join(_outline(one) for one in node if not _is_docstring(one))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    return f"{type(node).__name__}({','.join(f'{name}={_outline(one)}' for name, one in fields)})"


def _is_docstring(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _content(path: Path) -> str:
    if path.suffix == ".py":
        return outline(path.read_text("utf-8"))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (one for one in path.rglob("*") if one.is_file() and "__pycache__" not in one.parts)
    if files := sorted(found):
        return files
    raise FileNotFoundError(path)


def dependencies(root: Path) -> Iterator[str]:
    """Yield all that a test of the matrix depends on."""
    yield from CODE
    named: set[str] = set()
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_text("utf-8")
        if _MARKED.search(source) and "unit" not in path.parts:  # those test the matrix itself
            named.add(path.relative_to(root).as_posix())
            named.update(re.findall(r'"(.+?)"', "".join(_NAMED.findall(source))))
    yield from sorted(named)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of the matrix, unless they are due, asked for, or named one by one."""
    asked = config.getoption("matrix") or "matrix" in config.getoption("markexpr")
    marked = [item for item in items if item.get_closest_marker("matrix")]
    if not marked or asked or any("::" in argument for argument in config.args):
        return
    needs = {item: depends_on(item) for item in marked}
    changed = Fingerprints().changed(set().union(*needs.values()))
    left_out = {item for item, names in needs.items() if not changed & names}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def depends_on(item: pytest.Item) -> set[str]:
    named = {name for mark in item.iter_markers("matrix") for name in mark.args}
    return {*CODE, item.path.relative_to(ROOT).as_posix(), *named}


if __name__ == "__main__":
    Fingerprints().write()
    sys.stdout.write(f"Recorded in {RECORD}.\n")
