"""Numbers, durations and times in the language of a page.

English groups thousands with commas and has short units of time. Other languages use Babel's
conventions.
"""

from collections.abc import Sequence
from datetime import datetime

from studio.metrics import with_minus
from studio.web.i18n import locale

_SHORT = {"day": "d", "hour": "h", "minute": "min", "second": "s"}


def format_integer(value: float) -> str:
    """Format an integer with grouped thousands."""
    if locale.is_english():
        return with_minus(f"{value:,.0f}")
    from babel.numbers import format_decimal  # noqa: PLC0415 -- heavy import

    return with_minus(format_decimal(round(value), locale=locale.babel_locale()))


def format_digits(value: float, digits: int) -> str:
    """Format a number with so many significant digits, its thousands grouped."""
    text = f"{value:,.{digits}g}"
    if locale.is_english() or "," not in text:
        return with_minus(text)
    from babel.numbers import format_decimal  # noqa: PLC0415 -- heavy import

    rounded = float(text.replace(",", ""))
    babel_locale = locale.babel_locale()
    return with_minus(format_decimal(rounded, locale=babel_locale, decimal_quantization=False))


def format_percent(digits: str) -> str:
    """Format a percentage that is already rounded."""
    digits = with_minus(digits)
    return f"{digits} %" if locale.is_english() else f"{digits}%"


def within_sentence(title: str) -> str:
    """Return a title for use within a sentence: names such as LoRA stay as they are."""
    first = title.partition(" ")[0]
    is_word = locale.is_english() and first[1:].islower()
    return title[:1].lower() + title[1:] if is_word else title


def format_duration(parts: Sequence[tuple[str, str]]) -> str:
    """Format a duration, given as amounts with units."""
    if locale.is_english():
        return " ".join(f"{amount} {_SHORT[unit]}" for amount, unit in parts)
    from babel.units import format_unit  # noqa: PLC0415 -- heavy import

    return " ".join(
        format_unit(float(amount), f"duration-{unit}", "short", locale=locale.babel_locale())
        for amount, unit in parts
    )


def format_datetime_full(at: datetime) -> str:
    """Format a date and time to the second."""
    if locale.is_english():
        return f"{at:%Y-%m-%d %H:%M:%S} UTC"
    from babel.dates import format_datetime  # noqa: PLC0415 -- heavy import

    return format_datetime(at, "long", locale=locale.babel_locale())


def format_day_and_time(at: datetime) -> str:
    """Format a date and time without the year."""
    if locale.is_english():
        return f"{at:%d %b %H:%M}"
    from babel.dates import format_skeleton  # noqa: PLC0415 -- heavy import

    return " ".join(
        format_skeleton(skeleton, at, locale=locale.babel_locale()) for skeleton in ("MMMd", "Hm")
    )
