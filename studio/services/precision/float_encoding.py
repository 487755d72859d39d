"""Round numbers to a floating-point format exactly, and read and flip its bits.

A code is the integer that the bits of a stored number form: sign, exponent, mantissa. Without its
sign, the code of the next larger number is one more, through subnormal and normal numbers up to
infinity.
"""

import math
import re
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Literal

from studio.recipe.precision import FLOAT_FORMATS, FloatFormat, MatmulDType

Number = Fraction | float
"""An exact number; a float only for NaN, the infinities and negative zero."""

Part = Literal["sign", "exponent", "mantissa"]
Outcome = Literal[
    "exact", "rounded", "subnormal", "underflow", "overflow", "saturated", "infinity", "nan"
]

MAX_TEXT_LENGTH = 200
_MAX_POWER = 999
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e(?P<power>[+-]?\d+))?", re.IGNORECASE)
_GROUPING = re.compile(r"[\s,_]")
_FRACTION = re.compile(r"[+-]?\d+/\d*[1-9]\d*")
_SPECIAL = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


@dataclass(frozen=True, kw_only=True)
class StoredNumber:
    """A code of a format."""

    name: MatmulDType
    code: int

    @cached_property
    def format(self) -> FloatFormat:
        return FLOAT_FORMATS[self.name]

    @cached_property
    def is_negative(self) -> bool:
        return self.code >> (self.format.bits - 1) == 1

    @cached_property
    def magnitude_code(self) -> int:
        return self.code & ~_sign_bit(self.format)

    @cached_property
    def exponent_field(self) -> int:
        return self.magnitude_code >> self.format.mantissa

    @cached_property
    def fraction_field(self) -> int:
        return self.magnitude_code & (1 << self.format.mantissa) - 1

    @cached_property
    def exponent(self) -> int:
        """The power of two that the significand is multiplied by."""
        return max(self.exponent_field, 1) - 1 + self.format.min_exponent

    @cached_property
    def significand(self) -> Fraction:
        """1 and its mantissa; for subnormal numbers 0 and its mantissa."""
        fraction = Fraction(self.fraction_field, 2**self.format.mantissa)
        return fraction + 1 if self.exponent_field else fraction

    @cached_property
    def is_finite(self) -> bool:
        return self.magnitude_code <= _max_code(self.format)

    @cached_property
    def is_subnormal(self) -> bool:
        return self.exponent_field == 0 and self.fraction_field != 0

    @cached_property
    def number(self) -> Number:
        """Its exact value."""
        if not self.is_finite:
            is_infinite = self.format.has_infinity and not self.fraction_field
            magnitude = math.inf if is_infinite else math.nan
            return -magnitude if self.is_negative else magnitude
        if not self.magnitude_code:
            return -0.0 if self.is_negative else Fraction(0)
        value = self.significand * Fraction(2) ** self.exponent
        return -value if self.is_negative else value

    @cached_property
    def below(self) -> Number | None:
        """The next smaller number of the format."""
        return self._neighbour(-1)

    @cached_property
    def above(self) -> Number | None:
        """The next larger number of the format."""
        return self._neighbour(1)

    @property
    def bits(self) -> list[tuple[Part, int, int]]:
        """Each bit from the left: its part, its value, and the code with this bit flipped."""
        exponent: list[Part] = ["exponent"] * self.format.exponent
        mantissa: list[Part] = ["mantissa"] * self.format.mantissa
        places = range(self.format.bits - 1, -1, -1)
        return [
            (part, self.code >> place & 1, self.code ^ 1 << place)
            for part, place in zip(("sign", *exponent, *mantissa), places, strict=True)
        ]

    def _neighbour(self, direction: int) -> Number | None:
        if not self.is_finite:
            return None
        order = (-self.magnitude_code if self.is_negative else self.magnitude_code) + direction
        code = abs(order) | (_sign_bit(self.format) if order < 0 else 0)
        neighbour = StoredNumber(name=self.name, code=code)
        return neighbour.number if neighbour.is_finite else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """A number, and what a format stores of it."""

    exact: Number
    stored: StoredNumber

    @property
    def error(self) -> Fraction | None:
        """The stored value minus the exact one; None if either is not finite."""
        exact, stored = _finite(self.exact), _finite(self.stored.number)
        return None if exact is None or stored is None else stored - exact

    @property
    def relative_error(self) -> Fraction | None:
        exact = _finite(self.exact)
        return abs(self.error / exact) if exact and self.error is not None else None

    @property
    def outcome(self) -> Outcome:
        """What happened to the number."""
        exact, stored = _finite(self.exact), _finite(self.stored.number)
        if stored is None:
            is_nan = math.isnan(self.stored.number)
            return "nan" if is_nan else "infinity" if exact is None else "overflow"
        if exact is None or self._is_saturated:
            return "saturated"
        if exact and not stored:
            return "underflow"
        if self.stored.is_subnormal:
            return "subnormal"
        return "rounded" if self.error else "exact"

    @property
    def _is_saturated(self) -> bool:
        """Whether a larger number would have been stored if the format had one."""
        stored = self.stored
        half_gap = Fraction(2) ** (stored.exponent - stored.format.mantissa - 1)
        is_largest = stored.magnitude_code == _max_code(stored.format)
        return is_largest and self.error is not None and abs(self.error) > half_gap

    @property
    def significant_bits(self) -> int:
        """The significant bits it is stored with: fewer in a subnormal number."""
        stored = self.stored
        return stored.fraction_field.bit_length() if stored.is_subnormal else 0


def parse_number(text: str) -> Number | None:
    """Read a decimal number exactly, also `1/3`, `nan`, `inf` and `-0`; None if it is none."""
    text = _GROUPING.sub("", text).replace("\N{MINUS SIGN}", "-").lower()
    unsigned = text.lstrip("+-")
    if len(text) > MAX_TEXT_LENGTH:
        return None
    if unsigned in _SPECIAL and len(text) - len(unsigned) <= 1:
        return -_SPECIAL[unsigned] if text.startswith("-") else _SPECIAL[unsigned]
    decimal = _DECIMAL.fullmatch(text)
    if not (decimal or _FRACTION.fullmatch(text)):
        return None
    if decimal and abs(int(decimal["power"] or 0)) > _MAX_POWER:
        return None
    number = Fraction(text)
    return -0.0 if not number and text.startswith("-") else number


def encode(number: Number, name: MatmulDType) -> StoredNumber:
    """Round to the nearest number of a format, ties to the one whose last bit is 0."""
    form = FLOAT_FORMATS[name]
    is_negative = math.copysign(1, number) < 0 if isinstance(number, float) else number < 0
    code = _encode_magnitude(-number if is_negative else number, form)
    return StoredNumber(name=name, code=code | (_sign_bit(form) if is_negative else 0))


def round_number(number: Number, name: MatmulDType) -> Rounding:
    return Rounding(exact=number, stored=encode(number, name))


def read_code(text: str) -> StoredNumber | None:
    """Read `bfloat16:3dcd`; None if it is no code of a format."""
    name, _colon, digits = text.partition(":")
    dtype = next((known for known in FLOAT_FORMATS if known == name), None)
    if dtype is None or not re.fullmatch(r"[0-9a-f]{1,8}", digits):
        return None
    code = int(digits, 16)
    return StoredNumber(name=dtype, code=code) if code < 2 ** FLOAT_FORMATS[dtype].bits else None


def exact_text(number: Number) -> str:
    """Write a number so that `parse_number` reads the same one."""
    if isinstance(number, float):
        return str(number) if number else "-0"
    if number.denominator & (number.denominator - 1):
        return f"{number.numerator}/{number.denominator}"
    digits = Context(prec=MAX_TEXT_LENGTH)
    return str(digits.divide(Decimal(number.numerator), Decimal(number.denominator)))


def _encode_magnitude(number: Number, form: FloatFormat) -> int:
    infinity = ((1 << form.exponent) - 1) << form.mantissa
    quiet_nan = 1 << form.mantissa - 1
    nan = infinity | (quiet_nan if form.has_infinity else (1 << form.mantissa) - 1)
    overflow = infinity if form.has_infinity else _max_code(form)
    if isinstance(number, float):
        return nan if math.isnan(number) else overflow if number else 0
    if not number:
        return 0
    exponent = max(_floor_log2(number), form.min_exponent)
    steps = round(number / Fraction(2) ** (exponent - form.mantissa))
    # Adding, not joining: a mantissa that rounds up to 2 carries into the exponent.
    code = (exponent - form.min_exponent << form.mantissa) + steps
    return code if code <= _max_code(form) else overflow


def _max_code(form: FloatFormat) -> int:
    """Return the code of the largest finite number."""
    if form.has_infinity:
        return (((1 << form.exponent) - 1) << form.mantissa) - 1
    return (1 << form.exponent + form.mantissa) - 2


def _sign_bit(form: FloatFormat) -> int:
    return 1 << (form.bits - 1)


def _floor_log2(number: Fraction) -> int:
    guess = number.numerator.bit_length() - number.denominator.bit_length()
    return guess if Fraction(2) ** guess <= number else guess - 1


def _finite(number: Number) -> Fraction | None:
    if isinstance(number, Fraction):
        return number
    return Fraction(0) if number == 0 else None
