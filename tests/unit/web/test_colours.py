"""The colours of the style sheet: what is written or drawn stands out from what it stands on."""

import math
import re
from itertools import product
from pathlib import Path

import pytest

from studio.web.compare import svg_chart

TOKENS = Path("static/css/tokens.css").read_text(encoding="utf-8")
THEMES = ("light", "dark")
SURFACES = ("bg", "surface", "raised")
SERIES = tuple(f"series-{hue}" for hue in range(8))

Linear = tuple[float, float, float]
"""Red, green and blue, in linear light."""


def declared(name: str, theme: str) -> str:
    """Return the value of a colour in a theme, as the style sheet writes it."""
    found = re.search(rf"--{name}: light-dark\((.+)\);", TOKENS)
    assert found is not None, name
    values = re.split(r",\s*(?![^(]*\))", found[1])
    return values[THEMES.index(theme)].strip()


def to_linear(value: str) -> Linear:
    if value.startswith("#"):
        digits = value[1:] if len(value) > 4 else "".join(2 * digit for digit in value[1:])
        red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
        return _decode(red), _decode(green), _decode(blue)
    found = re.fullmatch(r"oklch\(([\d.]+)% ([\d.]+) ([\d.]+)\)", value)
    assert found is not None, value
    lightness, chroma, hue = (float(part) for part in found.groups())
    return _from_oklch(lightness / 100, chroma, math.radians(hue))


def _decode(part: float) -> float:
    """Undo the transfer function of sRGB."""
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _from_oklch(lightness: float, chroma: float, hue: float) -> Linear:
    """Convert as CSS Color 4 does, section 9.3."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    red, green, blue = (min(max(part, 0.0), 1.0) for part in (red, green, blue))
    return red, green, blue


def contrast(one: str, other: str, theme: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    first, second = (
        sum(
            share * part
            for share, part in zip(
                (0.2126, 0.7152, 0.0722), to_linear(declared(name, theme)), strict=True
            )
        )
        for name in (one, other)
    )
    lighter, darker = max(first, second), min(first, second)
    return (lighter + 0.05) / (darker + 0.05)


def test_conversion_agrees_with_known_colours() -> None:
    assert to_linear("oklch(62.8% .2577 29.23)") == pytest.approx((1, 0, 0), abs=2e-3)
    assert to_linear("#fff") == pytest.approx((1, 1, 1))
    assert to_linear("oklch(100% 0 0)") == pytest.approx((1, 1, 1), abs=1e-4)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("name", "surface"), list(product(SERIES, SURFACES)))
def test_curves_stand_out(name: str, surface: str, theme: str) -> None:
    assert contrast(name, surface, theme) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("name", "surface"),
    [
        *product(("ink", "ink-2", "accent", "good", "warn", "bad", "run"), SURFACES),
        ("on-accent", "accent"),
        ("bad", "bad-soft"),
        ("ink", "accent-soft"),
    ],
)
def test_text_is_legible(name: str, surface: str, theme: str) -> None:
    assert contrast(name, surface, theme) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("name", "surface"),
    list(product(("line-strong", "sign", "exponent", "mantissa"), ("bg", "surface"))),
)
def test_edges_of_controls_and_bits_stand_out(name: str, surface: str, theme: str) -> None:
    assert contrast(name, surface, theme) >= 3


def test_drawings_use_the_colours_of_the_light_theme() -> None:
    assert list(svg_chart.COLOURS) == [declared(name, "light") for name in SERIES]
