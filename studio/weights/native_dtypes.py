"""The dtypes of weights when a model is loaded as it was saved.

Each weight keeps its stored dtype, whatever the config says. Two exceptions change no value: dtypes
that no run supports become float32, and so do the vectors of a model with mixed dtypes, because a
norm does not accept input in one dtype and weights in a narrower one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from studio.weights.safetensors_headers import TensorInfo

DType = Literal["float32", "bfloat16", "float16"]
"""The dtypes that weights may be loaded in."""

FALLBACK_DTYPE: DType = "float32"
_DTYPES: tuple[DType, ...] = get_args(DType)
_MATRIX_DIMENSIONS = 2


def load_dtypes(tensors: Sequence[TensorInfo]) -> dict[str, DType]:
    """Return the dtype each weight is loaded in, by tensor name."""
    weights = [tensor for tensor in tensors if tensor.is_float]
    is_mixed = len({_loadable_dtype(tensor.dtype) for tensor in weights}) > 1
    return {tensor.name: _load_dtype(tensor, is_mixed=is_mixed) for tensor in weights}


def count_by_dtype(tensors: Sequence[TensorInfo], dtypes: Mapping[str, DType]) -> dict[DType, int]:
    """Return how many weights are loaded in each dtype, most common first."""
    counted: Counter[DType] = Counter()
    for tensor in tensors:
        if tensor.name in dtypes:
            counted[dtypes[tensor.name]] += tensor.size
    return {dtype: count for dtype, count in counted.most_common() if count}


def _load_dtype(tensor: TensorInfo, *, is_mixed: bool) -> DType:
    is_vector = len(tensor.shape) < _MATRIX_DIMENSIONS
    return FALLBACK_DTYPE if is_mixed and is_vector else _loadable_dtype(tensor.dtype)


def _loadable_dtype(stored: str) -> DType:
    return next((dtype for dtype in _DTYPES if dtype == stored), FALLBACK_DTYPE)
