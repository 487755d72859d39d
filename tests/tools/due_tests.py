"""Which tests are due: those of a suite whose code has changed since all of it last passed.

`SUITES` lists the code that each suite tests. Its slow tests run when that code, the code of
`COMMON` or `BESIDE`, the test's own file, or a module of its suite or of `SHARED` that it names has
changed. Its quick tests run when anything of the studio has changed.

Tests marked `smoke` run on each push: together they cover every suite. So do tests outside the
suites, and the quick ones of `tests/contract`.

`make test-all` runs everything, and if all passes, `python -m tests.tools.due_tests` records what
it passed with in `tests/passed.sha256`.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
RECORD = "tests/passed.sha256"
"""Fingerprints of everything with which all tests last passed: one per line, and of what."""

_TRAINS = ("studio/training", "studio/runner")
"""What trains a model. Tests in a browser are about pages: only those marked `smoke`, which run
each time, are about training, too."""

COMMON = (
    *(*_TRAINS, "studio/methods"),
    *("studio/recipe/precision.py", "studio/metrics.py", "constraints.txt"),
)
"""What every suite depends on."""

INSIDE = ("tests/training", "tests/web", "tests/security")
"""Suites whose tests start no worker, and so nothing that they do not name."""

_EXPORTING = (
    *(*INSIDE, "tests/e2e", "tests/faults", "tests/worker"),
    *("tests/commands", "tests/guides", "tests/openai"),
)
"""Suites whose tests export nothing unless they name it: workers export only what is asked for."""

_BROWSING = tuple(suite for suite in _EXPORTING if suite != "tests/web")
"""Suites whose tests open few pages."""


class Beside(NamedTuple):
    """Code that some suites need only where they name it. All others always do."""

    named_by: re.Pattern[str]
    suites: tuple[str, ...] = INSIDE


BESIDE = {
    "studio/runner/__main__.py": Beside(re.compile(r"studio\.runner(\.__main__)?[\s\"']")),
    "studio/runner/inference": Beside(re.compile(r"studio\.runner\.(inference|work_main)")),
    "studio/runner/judges": Beside(re.compile(r"studio\.runner\.(judges|work_main)")),
    "studio/runner/tasks": Beside(re.compile(r"studio\.runner\.(tasks|work_main)")),
    "studio/runner/tasks/track.py": Beside(re.compile("track")),
    "studio/training/export": Beside(re.compile("export"), _EXPORTING),
    "studio/recipe/exports.py": Beside(re.compile("export"), _EXPORTING),
    "README.md": Beside(re.compile(r"parents\[\d\] / .README"), _EXPORTING),
    "studio/web/api/system/hardware.py": Beside(re.compile(r"/hardware\b"), _BROWSING),
    "studio/web/settings": Beside(re.compile(r"/settings\b|support\.pages"), _BROWSING),
}
"""What happens beside training, and pages that few tests in a browser open."""

SHARED = ("tests/support", "tests/fakes")
"""What tests of all suites share: each depends on the modules that it names."""

APART = "# Only for benchmarks"
"""Where the pins of packages begin that only tests of benchmarks and trackers import."""

LANGUAGES = ("studio/locale",)
"""Translations: only tests in a browser that name a language read any."""

_NAMES_LANGUAGE = re.compile(r"zh|\u4e2d\u6587|language", re.IGNORECASE)

SUITES: dict[str, tuple[str, ...]] = {
    "tests/training": (
        *("studio/recipe", "studio/weights", "studio/intake/rows"),
        *("studio/services/estimates", "studio/services/precision"),
    ),
    "tests/faults": (
        *("studio/worker", "studio/db", "studio/processes", "studio/commands"),
        *("studio/services/queue", "studio/services/operations", "studio/services/tasks"),
        *("studio/services/runs", "studio/services/sweeps", "studio/services/exports"),
        *("studio/services/trackers", "studio/trackers"),
    ),
    "tests/worker": ("studio/worker", "studio/services/tasks", "studio/services/exports"),
    "tests/commands": ("studio/commands", "studio/client"),
    "tests/guides": ("docs", "mkdocs.yml", "studio/client", "studio/commands"),
    "tests/openai": ("studio/services/openai", "studio/web/api/openai", "studio/graders"),
    "tests/web": ("studio/web", "studio/services", "studio/recipe", "studio/db", "templates"),
    "tests/contract": ("studio", "templates", "static/css", "static/js", "pyproject.toml"),
    "tests/security": ("studio/graders", "studio/processes", "studio/intake"),
    "tests/e2e": (
        *("templates", "static/css", "static/js", "studio/web"),
        "studio/client",
    ),
}
"""Folders of tests, and the code that their slow tests are about."""

ANYTHING = ("studio", "templates", "static/css", "static/js", "migrations", "pyproject.toml")
"""What the quick tests of all suites depend on."""

_SLOW = ("slow", "e2e", "faults")
"""Marks of slow tests."""


class Fingerprints:
    """Fingerprints of files and folders, each made once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.known: dict[str, str] = {}
        self._contents: dict[Path, str] = {}

    def get(self, name: str) -> str:
        """Return the SHA-256 of a file, or of a folder with all files in it.

        Comments, docstrings and the layout of Python files do not count.

        Raises:
            FileNotFoundError: There is none. Without this, a renamed folder would never be due.

        """
        if name not in self.known:
            digest = hashlib.sha256()
            apart = tuple(one for one in BESIDE if one.startswith(f"{name}/"))
            for path in _files(self.root / name):
                relative = path.relative_to(self.root).as_posix()
                if relative.startswith(apart):
                    continue
                digest.update(f"{relative}\n{self._content(path)}\n".encode())
            self.known[name] = digest.hexdigest()
        return self.known[name]

    def _content(self, path: Path) -> str:
        if path not in self._contents:
            self._contents[path] = _content(path)
        return self._contents[path]

    def changed(self, names: Iterable[str]) -> set[str]:
        """Return which of these have changed since all tests last passed, or are new."""
        record = self.root / RECORD
        lines = record.read_text("utf-8").splitlines() if record.exists() else []
        kept = {name: sha for sha, name in (line.split("  ", 1) for line in lines)}
        return {name for name in names if kept.get(name) != self.get(name)}

    def write(self) -> None:
        names = sorted(set(dependencies(self.root)))
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
    content = path.read_bytes()
    if path.name == "constraints.txt":
        content = content.partition(APART.encode())[0]
    return hashlib.sha256(content).hexdigest()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (one for one in path.rglob("*") if one.is_file() and "__pycache__" not in one.parts)
    if files := sorted(found):
        return files
    raise FileNotFoundError(path)


def dependencies(root: Path) -> Iterator[str]:
    """Yield all that the tests of the suites depend on."""
    yield from (*COMMON, *BESIDE, *LANGUAGES, *ANYTHING, "tests/conftest.py")
    for code in SUITES.values():
        yield from code
    for folder in (*SUITES, *SHARED):
        modules = sorted((root / folder).rglob("*.py"))
        yield from (path.relative_to(root).as_posix() for path in modules)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not due, unless all are asked for, or some by name."""
    if config.getoption("all") or any("::" in argument for argument in config.args):
        return
    needs = {item: names for item in items if (names := depends_on(item))}
    changed = Fingerprints().changed(set().union(*needs.values()))
    left_out = {item for item, names in needs.items() if not changed & names}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def depends_on(item: pytest.Item) -> set[str]:
    """Return what a test depends on; nothing if it runs each time."""
    path = item.path.relative_to(ROOT).as_posix()
    suite = next((name for name in SUITES if path.startswith(f"{name}/")), None)
    is_quick = not any(map(item.get_closest_marker, _SLOW))
    always = item.get_closest_marker("smoke") or (is_quick and suite == "tests/contract")
    if suite is None or always:
        return set()
    imported = _imported(path, suite)
    own = (name for name in imported if name.startswith(suite))
    texts = [_text(path), *(_text(one) for one in own if not Path(one).name.startswith("test_"))]
    beside = (
        name
        for name, one in BESIDE.items()
        if suite not in one.suites or any(map(one.named_by.search, texts))
    )
    languages = LANGUAGES if suite == "tests/e2e" and _NAMES_LANGUAGE.search(_text(path)) else ()
    code = ANYTHING if is_quick else SUITES[suite]
    common = COMMON if is_quick or suite != "tests/e2e" else {*COMMON} - {*_TRAINS}
    return {*common, *beside, *languages, *code, *_scripts(suite), *imported, path}


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


@cache
def _imported(path: str, suite: str) -> frozenset[str]:
    """Return the modules of tests that a test file needs: what it names, and conftests name."""
    folders = [folder.as_posix() for folder in Path(path).parents]
    conftests = (f"{folder}/conftest.py" for folder in folders if folder.startswith("tests"))
    found = {name for name in conftests if (ROOT / name).exists()}
    waiting = [path, *found]
    places = tuple(f"{folder}/" for folder in (suite, *SHARED))
    while waiting:
        named = {name for name in _named(waiting.pop()) if name.startswith(places)}
        waiting += named - found
        found |= named
    return frozenset(found)


@cache
def _scripts(suite: str) -> frozenset[str]:
    """Return the modules of a suite that are no tests and that no other imports: tests run them."""
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / suite).rglob("*.py")}
    imported = {name for module in modules for name in _imports(module)}
    return frozenset(
        name for name in modules - imported if not Path(name).name.startswith(("test_", "conftest"))
    )


@cache
def _named(path: str) -> frozenset[str]:
    """Return the modules of tests that a file imports, and those of `SHARED` that it starts."""
    started = (f"tests/{folder}/{name}.py" for folder, name in _STARTS.findall(_text(path)))
    return _imports(path) | {name for name in started if (ROOT / name).exists()}


_STARTS = re.compile(r"""(support|fakes)(?:\.|/|" / ")(\w+)""")


@cache
def _imports(path: str) -> frozenset[str]:
    """Return the modules of tests that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(_text(path))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    files = (f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests."))
    return frozenset(name for name in files if (ROOT / name).exists())


if __name__ == "__main__":
    Fingerprints().write()
    sys.stdout.write(f"Recorded in {RECORD}.\n")
