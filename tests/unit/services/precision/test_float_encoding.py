"""Rounding to a format, its bits and neighbours, held to the formats that Python has itself."""

import math
import struct
from fractions import Fraction
from random import Random

import pytest

from studio.recipe.precision import FLOAT_FORMATS, MatmulDType
from studio.services.precision import lost_updates
from studio.services.precision.float_encoding import (
    StoredNumber,
    encode,
    exact_text,
    parse_number,
    read_code,
    round_number,
)

PYTHON_FORMATS: tuple[tuple[MatmulDType, str, str], ...] = (
    ("float32", "<f", "<I"),
    ("float16", "<e", "<H"),
)
NAMES = list(FLOAT_FORMATS)


@pytest.mark.parametrize(("name", "as_float", "as_integer"), PYTHON_FORMATS)
def test_rounding_agrees_with_python(name: MatmulDType, as_float: str, as_integer: str) -> None:
    dice = Random(0)  # noqa: S311 -- the same numbers each time
    numbers = [math.ldexp(dice.uniform(-2, 2), dice.randint(-30, 14)) for _number in range(3000)]

    for number in numbers:
        (code,) = struct.unpack(as_integer, struct.pack(as_float, number))
        assert encode(Fraction(number), name).code == code


@pytest.mark.parametrize("name", NAMES)
def test_every_number_encodes_to_its_own_code(name: MatmulDType) -> None:
    bits = FLOAT_FORMATS[name].bits
    dice = Random(1)  # noqa: S311 -- the same numbers each time
    codes = range(2**bits) if bits <= 8 else [dice.getrandbits(bits) for _number in range(2000)]

    stored = [StoredNumber(name=name, code=code) for code in codes]

    assert all(
        encode(one.number, name).code == one.code
        for one in stored
        if not isinstance(one.number, float) or not math.isnan(one.number)
    )


@pytest.mark.parametrize("name", NAMES)
def test_table_of_formats_agrees_with_codes(name: MatmulDType) -> None:
    form = FLOAT_FORMATS[name]
    largest = encode(Fraction(form.max), name)
    one = encode(Fraction(1), name)

    assert float(largest.number) == pytest.approx(form.max, rel=1e-7)
    assert largest.above is None
    assert one.above is not None
    assert one.above - 1 == form.eps
    assert StoredNumber(name=name, code=1).number == form.min_subnormal
    assert StoredNumber(name=name, code=1 << form.mantissa).number == form.min_normal


@pytest.mark.parametrize(
    ("name", "text", "outcome"),
    [
        ("bfloat16", "0.5", "exact"),
        ("bfloat16", "0.1", "rounded"),
        ("float16", "1e-7", "subnormal"),
        ("float16", "1e-8", "underflow"),
        ("float16", "65519", "rounded"),
        ("float16", "65520", "overflow"),
        ("float8_e4m3fn", "464", "rounded"),
        ("float8_e4m3fn", "465", "saturated"),
        ("float8_e4m3fn", "-inf", "saturated"),
        ("float8_e5m2", "inf", "infinity"),
        ("float32", "-nan", "nan"),
        ("float32", "-0", "exact"),
    ],
)
def test_outcome_names_what_happened(name: MatmulDType, text: str, outcome: str) -> None:
    number = parse_number(text)

    assert number is not None
    assert round_number(number, name).outcome == outcome


def test_flipping_bit_twice_returns_to_number() -> None:
    stored = encode(Fraction("0.1"), "bfloat16")
    for place, (_part, _value, flipped) in enumerate(stored.bits):
        again = StoredNumber(name="bfloat16", code=flipped).bits[place]
        assert again[2] == stored.code


def test_neighbours_of_zero_are_the_smallest_numbers() -> None:
    zero = encode(Fraction(0), "float16")

    assert (zero.below, zero.above) == (-Fraction(1, 2**24), Fraction(1, 2**24))


@pytest.mark.parametrize(
    "text", ["", "blah", "1e", "1/0", "1e99999999", "--1", "0x10", "1" * 201, "e5", "nan2", "."]
)
def test_text_that_is_no_number_is_refused(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize("text", ["1/3", "-2.5e-8", "65,520", "\N{MINUS SIGN}1", "+.5", "1_000"])
def test_exact_text_reads_back(text: str) -> None:
    number = parse_number(text)

    assert number is not None
    assert parse_number(exact_text(number)) == number


def test_exact_text_of_smallest_number_reads_back() -> None:
    smallest = StoredNumber(name="float32", code=0x007FFFFF).number

    assert parse_number(exact_text(smallest)) == smallest


@pytest.mark.parametrize("text", ["bfloat16:10000", "bfloat16", "float:1", "float16:zz", ""])
def test_code_outside_format_is_refused(text: str) -> None:
    assert read_code(text) is None


@pytest.mark.parametrize("name", NAMES)
def test_fast_rounding_agrees_with_exact_rounding(name: MatmulDType) -> None:
    dice = Random(2)  # noqa: S311 -- the same numbers each time
    for _number in range(2000):
        value = math.ldexp(dice.uniform(-2, 2), dice.randint(-20, 7))
        fast = lost_updates.round_float(value, FLOAT_FORMATS[name])
        assert fast == float(encode(Fraction(value), name).number)


def test_small_updates_are_lost_by_narrow_formats() -> None:
    rows = {row.name: row for row in lost_updates.add_updates(1.0, 1e-4)}

    assert [name for name, row in rows.items() if not row.is_stuck] == ["float32"]
    assert rows["bfloat16"].nearest == 1
    assert rows["bfloat16"].stochastic == pytest.approx(1.1, abs=0.05)
    assert rows["bfloat16"].master == pytest.approx(1.1, abs=2**-8)
