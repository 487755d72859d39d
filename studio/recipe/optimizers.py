"""The optimizers of a run: what they keep in memory, and what they need. One row per optimizer."""

from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal[
    "adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "lion_32bit", "muon"
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
    is_for_matrices: bool = False
    """Whether it updates the matrices of the layers in another way, with one value per weight."""


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
