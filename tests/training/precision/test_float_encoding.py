"""Each format of the page of number formats stores what torch stores, bit for bit."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from studio.recipe.precision import MatmulDType
from studio.services.precision.float_encoding import encode

RANDOM = 20_000
EDGES = [
    *(0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, 1 / 3),
    *(448.0, 464.0, 465.0, 480.0, 57344.0, 61439.0, 61440.0, 65504.0, 65519.0, 65520.0, 70000.0),
    *(2.0**-9, 2.0**-10, 2.0**-11, 2.0**-16, 2.0**-17, 2.0**-18, 2.0**-24, 2.0**-25, 2.0**-26),
    *(2.0**-126, 2.0**-133, 2.0**-134, 2.0**-149, 3.3895314e38, 3.3961775e38, 3.4028235e38),
]


def samples() -> Tensor:
    """Return random float32 bits, numbers of usual sizes, ties of every format, and edges."""
    dice = torch.Generator()
    dice.manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (RANDOM,), generator=dice, dtype=torch.int64)
    anything = bits.to(torch.int32).view(torch.float32)
    usual = torch.randn(RANDOM, generator=dice) * 2.0 ** torch.randint(
        -30, 18, (RANDOM,), generator=dice
    )
    ties = (usual.view(torch.int32) & ~0xFFF | 0x1000).view(torch.float32)
    coarse_ties = (usual.view(torch.int32) & ~0x7FFFF | 0x80000).view(torch.float32)
    return torch.cat([anything, usual, ties, coarse_ties, torch.tensor(EDGES)])


def as_tf32(values: Tensor) -> Tensor:
    """Round float32 to its first 10 bits of mantissa, ties to even."""
    bits = values.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    rounded = bits + 0xFFF + (bits >> 13 & 1)
    return torch.where(values.isfinite(), rounded, bits) >> 13


STORED: dict[MatmulDType, Callable[[Tensor], Tensor]] = {
    "float32": lambda values: values.view(torch.int32).to(torch.int64) & 0xFFFFFFFF,
    "tf32": as_tf32,
    "bfloat16": lambda values: values.bfloat16().view(torch.int16).to(torch.int64) & 0xFFFF,
    "float16": lambda values: values.half().view(torch.int16).to(torch.int64) & 0xFFFF,
    "float8_e4m3fn": lambda values: values.to(torch.float8_e4m3fn).view(torch.uint8).long(),
    "float8_e5m2": lambda values: values.to(torch.float8_e5m2).view(torch.uint8).long(),
}


@pytest.mark.parametrize("name", list(STORED))
def test_no_value_differs_from_torch(name: MatmulDType) -> None:
    values = samples()
    expected = STORED[name](values).tolist()

    different = [
        (value, code)
        for value, code in zip(values.tolist(), expected, strict=True)
        if value == value and encode(_exact(value), name).code != code  # noqa: PLR0124 -- NaN has many codes
    ]

    assert different == []
    assert [name for value in EDGES if value != value and _is_number(name, value)] == []  # noqa: PLR0124 -- NaN


def test_negative_zero_keeps_its_sign() -> None:
    assert [encode(-0.0, name).code.bit_count() for name in ("float32", "float8_e5m2")] == [1, 1]


def _exact(value: float) -> Fraction | float:
    return Fraction(value) if value and abs(value) < float("inf") else value


def _is_number(name: MatmulDType, value: float) -> bool:
    stored = encode(value, name).number
    return stored == stored  # noqa: PLR0124 -- NaN
