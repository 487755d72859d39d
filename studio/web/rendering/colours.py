"""The colours of charts. The colour of a line says which run it is, on every page.

`static/css/tokens.css` declares the colours themselves, for light and dark pages.
"""

import re
from functools import cache

from studio import resources

HUES = 8
DASHES = ("", "6 3", "2 2", "8 3 2 3")
"""Patterns that distinguish lines of one colour: runs that share it, or metrics of one run."""

_CSS_VARIABLE = re.compile(r"^\s*--([\w-]+): (.+);$", re.MULTILINE)
_LIGHT_DARK = re.compile(r"light-dark\((\S.*), (\S.*)\)")


def run_hue(run_id: int | None) -> int:
    """Return the number of a run's colour, which never depends on other runs."""
    return (run_id or 0) % HUES


def css_variables() -> dict[str, str]:
    """Return every CSS variable that style sheets may use, with its value."""
    css = (resources.static_dir() / "css" / "tokens.css").read_text(encoding="utf-8")
    return dict(_CSS_VARIABLE.findall(css))


def theme_colours() -> dict[str, tuple[str, str]]:
    """Return every colour, as light and as dark pages show it."""
    pairs = {name: _LIGHT_DARK.fullmatch(value) for name, value in css_variables().items()}
    return {name: (pair[1], pair[2]) for name, pair in pairs.items() if pair}


@cache
def series_colours() -> tuple[str, ...]:
    """Return the colours of lines on light pages, by number, as hexadecimal RGB."""
    colours = theme_colours()
    return tuple(colours[f"series-{hue}"][0] for hue in range(HUES))
