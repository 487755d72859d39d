"""The colours of tokens.css: legible on light and dark pages, and the only ones of charts."""

import math
import re

import pytest

from studio.web.rendering import colours

Rgb = tuple[float, float, float]
SURFACES = ("bg", "surface", "raised")
LEAST_TEXT, LEAST_LINE = 4.5, 3.0
"""The least contrast of text, and of what else carries meaning (WCAG 2.2, 1.4.3 and 1.4.11)."""
ON_THEIR_OWN = {
    "on-accent": ("accent",),
    "bad": (*SURFACES, "bad-soft"),
    "ink": (*SURFACES, "accent-soft"),
}
TEXTS = ("ink", "ink-2", "accent", "good", "warn", "bad", "run", "on-accent")
LINES = (
    *(f"series-{hue}" for hue in range(colours.HUES)),
    *("line-strong", "sign", "exponent", "mantissa"),
)


def to_linear_rgb(text: str) -> Rgb:
    """Read `#rgb`, `#rrggbb` or `oklch(l% c h)` as linear sRGB."""
    if text.startswith("#"):
        digits = text[1:] if len(text) > 4 else "".join(2 * digit for digit in text[1:])
        red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
        return _linear(red), _linear(green), _linear(blue)
    found = re.fullmatch(r"oklch\((\S+)% (\S+) (\S+)\)", text)
    assert found, text
    return _from_oklch(float(found[1]) / 100, float(found[2]), float(found[3]))


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _from_oklch(lightness: float, chroma: float, hue: float) -> Rgb:
    """Convert as CSS Color 4 does; what sRGB cannot show is clipped."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    clipped = [min(max(part, 0.0), 1.0) for part in (red, green, blue)]
    return clipped[0], clipped[1], clipped[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, as WCAG defines it."""
    weights = (0.2126, 0.7152, 0.0722)
    low, high = sorted(
        sum(weight * part for weight, part in zip(weights, to_linear_rgb(text), strict=True))
        for text in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_as_defined() -> None:
    assert contrast("#fff", "#000") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.478, abs=1e-3)
    assert to_linear_rgb("oklch(62.8% .2577 29.23)") == pytest.approx((1, 0, 0), abs=2e-3)
    assert contrast("oklch(100% 0 0)", "oklch(0% 0 0)") == pytest.approx(21, abs=1e-3)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("name", "least"),
    [*((name, LEAST_TEXT) for name in TEXTS), *((name, LEAST_LINE) for name in LINES)],
)
def test_colours_stand_out_from_surfaces(name: str, least: float, theme: int) -> None:
    known = colours.theme_colours()
    measured = {
        ground: contrast(known[name][theme], known[ground][theme])
        for ground in ON_THEIR_OWN.get(name, SURFACES)
    }
    assert {ground: value for ground, value in measured.items() if value < least} == {}


def test_every_colour_is_text_line_or_ground() -> None:
    grounds = {*SURFACES, "line", "accent-soft", "bad-soft"}
    assert {*colours.theme_colours()} == {*TEXTS, *LINES, *grounds}


def test_colours_of_lines_are_plain_rgb_for_files() -> None:
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours.series_colours())


def test_a_run_keeps_its_colour() -> None:
    assert [colours.run_hue(number) for number in (1, 8, 9)] == [1, 0, 1]
