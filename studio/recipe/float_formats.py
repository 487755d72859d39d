"""The floating-point formats: their bit layouts, ranges and step sizes."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from studio.weights import safetensors_headers

DType: TypeAlias = safetensors_headers.DType
"""The formats a number can be stored in."""

MatmulDType = Literal["float32", "tf32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
"""The input formats of a matrix product: TF32 and float8 exist only inside one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    sign: int = 1
    exponent: int
    mantissa: int
    max: float
    eps: float
    """Distance from 1 to the next number: the smallest relative change it can hold."""


FLOAT_FORMATS: dict[MatmulDType, FloatFormat] = {
    "float32": FloatFormat(exponent=8, mantissa=23, max=3.4028235e38, eps=2**-23),
    "tf32": FloatFormat(exponent=8, mantissa=10, max=3.4011621e38, eps=2**-10),
    "bfloat16": FloatFormat(exponent=8, mantissa=7, max=3.3895314e38, eps=2**-7),
    "float16": FloatFormat(exponent=5, mantissa=10, max=65504.0, eps=2**-10),
    "float8_e4m3fn": FloatFormat(exponent=4, mantissa=3, max=448.0, eps=2**-3),
    "float8_e5m2": FloatFormat(exponent=5, mantissa=2, max=57344.0, eps=2**-2),
}
