"""The optimizers of a run: what they keep in memory, and what they need. One row per optimizer."""

from dataclasses import dataclass
from typing import Literal

from studio.hardware import Hardware
from studio.recipe.precision import PRECISIONS

OptimizerName = Literal[
    "adamw_torch_fused", "adamw_torch", "adamw_8bit", "adafactor", "sgd", "lion_32bit", "muon"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRow:
    name: OptimizerName
    title: str
    states: int
    """Values it keeps for each weight. Adafactor's are too few to count."""
    scratch: int
    """Temporary bytes per value while it updates a weight."""
    upstream: str = ""
    """The name that upstream gets, if it does not know the optimizer."""
    is_adamw: bool = False
    """Whether it is AdamW, which a precision may replace by its own."""
    package: str = ""
    """The package it needs, if any."""
    extra: str = "quantised"
    """The extra of `mantissa-studio` that installs the package."""
    has_8bit_states: bool = False
    """Whether it keeps its values in 8 bits, for weights that are large and no embeddings."""
    is_for_matrices: bool = False
    """Whether it updates the matrices of the layers in another way, with one value per weight."""

    def unsupported_reason(self, hardware: Hardware) -> str:
        """Return why this machine cannot use it; empty if it can."""
        if not self.package or self.package in hardware.packages:
            return ""
        return (
            f"needs the package {self.package}, which is not installed: "
            f"pip install 'mantissa-studio[{self.extra}]'"
        )


BLOCK = 256
"""Weights that share a scale in 8-bit states (`bitsandbytes`)."""
MIN_8BIT_SIZE = 4096
"""Weights with fewer values keep float32 states (`bitsandbytes`' `min_8bit_size`)."""


_TABLE = (
    OptimizerRow(
        name="adamw_torch_fused",
        title="AdamW",
        states=2,
        scratch=0,
        is_adamw=True,
    ),
    OptimizerRow(
        name="adamw_torch",
        title="AdamW",
        states=2,
        scratch=8,
        is_adamw=True,
    ),
    OptimizerRow(
        name="adamw_8bit",
        title="AdamW with 8-bit states (float32 for embeddings and small weights)",
        states=2,
        scratch=0,
        package="bitsandbytes",
        has_8bit_states=True,
    ),
    OptimizerRow(
        name="adafactor",
        title="Adafactor",
        states=0,
        scratch=12,
    ),
    OptimizerRow(
        name="sgd",
        title="SGD",
        states=0,
        scratch=0,
    ),
    OptimizerRow(
        name="lion_32bit",
        title="Lion",
        states=1,
        scratch=4,
    ),
    OptimizerRow(
        name="muon",
        title="Muon (updates in bfloat16) and AdamW",
        states=2,
        scratch=8,
        upstream="adamw_torch",
        is_for_matrices=True,
    ),
)
OPTIMIZERS: dict[OptimizerName, OptimizerRow] = {row.name: row for row in _TABLE}


def scratch_bytes(optimizer: OptimizerName, precision: str) -> int:
    """Return the temporary bytes per value that an update needs."""
    if PRECISIONS[precision].rounding is not None:
        return _ROUNDING_SCRATCH
    return OPTIMIZERS[optimizer].scratch


_ROUNDING_SCRATCH = 24
"""The studio's own AdamW uses float32: gradient, averages, weight and change, one weight at a
time."""
