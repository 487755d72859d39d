"""What a browser has to fetch to show a page, at its first visit: the budgets of the house."""

import gzip
import re
from pathlib import Path

import pytest

import studio
from studio import resources
from studio.web.rendering import static_files

KB = 1000
STYLES = resources.static_dir() / "css"
MADE = ("series-", "u-", "band-", "line-", "dot-")
"""The beginnings of class names that a number completes, or that uPlot brings."""
SCRIPT, STYLE = 60 * KB, 20 * KB

_SOURCE = re.compile(r"""static\(["'](\S+?\.js)["']\)""")
_AT_ONCE = re.compile(r"""(?:from|new URL\()\s*["'`](\.\S+?\.js)["'`]""")
_WHEN_USED = re.compile(r"""import\(["'`](\.\S+?\.js)["'`]""")


def modules() -> list[str]:
    """Return the module of each page that has one."""
    asked = re.compile(r"""data-module="\{\{ static\(["'](\S+?)["']\)""")
    return sorted(
        {
            name
            for path in resources.templates_dir().rglob("*.html")
            for name in asked.findall(path.read_text("utf-8"))
        }
    )


def shared() -> set[str]:
    return set(_SOURCE.findall((resources.templates_dir() / "base.html").read_text("utf-8")))


def fetched(names: set[str]) -> set[str]:
    """Return all that some scripts have fetched as soon as they are."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _near(name, _AT_ONCE.findall(_text(name)))
    return found


def used(names: set[str]) -> set[str]:
    """Return what some scripts fetch once a person asks for what it does."""
    return {one for name in names for one in _near(name, _WHEN_USED.findall(_text(name)))}


def _text(name: str) -> str:
    return (resources.static_dir() / name).read_text("utf-8")


def _near(name: str, written: list[str]) -> list[str]:
    root = resources.static_dir().resolve()
    here = (root / name).parent
    return [(here / one).resolve().relative_to(root).as_posix() for one in written]


def gzipped(content: bytes) -> int:
    return len(gzip.compress(content, 9))


@pytest.mark.parametrize("module", modules())
def test_page_scripts_stay_within_size_budget(module: str) -> None:
    weights = {
        name: gzipped(static_files.shared_folder().content(name))
        for name in fetched(shared() | {module})
    }
    heaviest = sorted(weights.items(), key=lambda item: -item[1])[:8]
    assert sum(weights.values()) <= SCRIPT, heaviest


def test_css_bundle_stays_within_size_budget() -> None:
    assert gzipped(static_files.bundle_content()) <= STYLE


def test_every_stylesheet_is_used() -> None:
    kept = {
        path.relative_to(resources.static_dir()).as_posix()
        for path in resources.static_dir().rglob("*.css")
    }

    assert {*static_files.STYLESHEETS, *static_files.REPORT_STYLESHEETS} == kept


def test_every_script_is_used_by_some_page() -> None:
    kept = {
        path.relative_to(resources.static_dir()).as_posix()
        for path in resources.static_dir().rglob("*.js")
    }
    reached = fetched(shared() | set(modules()))
    while (more := reached | fetched(used(reached))) != reached:
        reached = more

    assert reached == kept


def test_each_style_class_is_used() -> None:
    """A class that no page has is a leftover, or a renamed one that lost its style."""
    styles = "".join(path.read_text("utf-8") for path in STYLES.glob("*.css"))
    selectors = re.findall(r"([^{}]+)\{", re.sub(r"/\*.*?\*/", "", styles, flags=re.DOTALL))
    styled = {name for one in selectors for name in re.findall(r"\.([a-zA-Z][\w-]*)", one)}
    sources = [
        *resources.templates_dir().rglob("*.html"),
        *(resources.static_dir() / "js").rglob("*.js"),
        *Path(studio.__file__).parent.rglob("*.py"),
    ]
    used = set(re.findall(r"[\w-]+", "".join(path.read_text("utf-8") for path in sources)))

    assert {name for name in styled - used if not name.startswith(MADE)} == set()
