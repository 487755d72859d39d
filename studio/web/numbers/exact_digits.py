"""Write numbers with all their digits, as far as a line holds them."""

import math
from decimal import Context, Decimal
from fractions import Fraction

from studio.services.precision.float_encoding import Number
from studio.web.i18n.formatting import scientific
from studio.web.i18n.locale import gettext

MAX_DIGITS = 28
"""Numbers with more significant digits are cut."""
_CUT_TO = 16
_PLAIN_FROM, _PLAIN_TO = -5, 12
"""The powers of ten between which plain digits read well."""

_ALL = Context(prec=200)


def digits(number: Number | None, limit: int = MAX_DIGITS) -> str:
    """Write a number exactly; a longer one than `limit` digits ends in an ellipsis."""
    if number is None:
        return "\N{EN DASH}"
    if isinstance(number, float) and not math.isfinite(number):
        return _special(number)
    value = _as_decimal(number)
    if not value:
        return "\N{MINUS SIGN}0" if value.is_signed() else "0"
    is_cut = len(value.normalize(_ALL).as_tuple().digits) > limit
    if is_cut:
        value = Context(prec=min(limit, _CUT_TO), rounding="ROUND_DOWN").plus(value)
    text = _plain(value) + "\N{HORIZONTAL ELLIPSIS}" * is_cut
    if not _PLAIN_FROM <= value.adjusted() < _PLAIN_TO:
        text = scientific(_mantissa(value) + "\N{HORIZONTAL ELLIPSIS}" * is_cut, value.adjusted())
    return text.replace("-", "\N{MINUS SIGN}", 1) if value.is_signed() else text


def _special(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    infinite = gettext("infinite")
    return f"\N{MINUS SIGN}{infinite}" if number < 0 else infinite


def _as_decimal(number: Number) -> Decimal:
    if isinstance(number, Fraction):
        return _ALL.divide(Decimal(number.numerator), Decimal(number.denominator))
    return Decimal(number)


def _plain(value: Decimal) -> str:
    text = f"{value:,f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _mantissa(value: Decimal) -> str:
    return _plain(value.scaleb(-value.adjusted(), _ALL))
