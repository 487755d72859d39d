"""Write numbers with all their digits, as far as a line holds them."""

import math
from decimal import Context, Decimal
from fractions import Fraction

from studio.services.precision.float_encoding import Number
from studio.web.i18n.formatting import scientific
from studio.web.i18n.locale import gettext
from studio.web.i18n.number_i18n import format_integer

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
    signed = _as_decimal(number)
    sign, value = "\N{MINUS SIGN}" if signed.is_signed() else "", _ALL.abs(signed)
    is_cut = len(value.normalize(_ALL).as_tuple().digits) > limit
    if is_cut:
        value = Context(prec=min(limit, _CUT_TO), rounding="ROUND_DOWN").plus(value)
    rest = "\N{HORIZONTAL ELLIPSIS}" * is_cut
    power = value.adjusted()
    if not value or _PLAIN_FROM <= power < _PLAIN_TO:
        return sign + _plain(value) + rest
    return sign + scientific(_plain(value.scaleb(-power, _ALL)) + rest, power)


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
    whole, _point, fraction = f"{value:f}".partition(".")
    fraction = fraction.rstrip("0")
    return format_integer(int(whole)) + (f".{fraction}" if fraction else "")
