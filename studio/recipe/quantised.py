"""The quantised formats: what a frozen model's linear layers may be kept in beside an adapter.

One row a format. The form's choices, the loader, the plan of memory, the refusals and the audit
read it. Embeddings, norms and the output layer are never quantised: they stay in the format that
the precision computes in, and so does what comes out of a quantised layer.
"""

from dataclasses import dataclass
from typing import Literal

from studio.hardware import Hardware

QuantisedName = Literal["int8", "nf4"]

NF4_BLOCK_SIZE = 64
"""Weights of NF4 that share one scale."""
_NF4_SCALE_BLOCK_SIZE = 256
"""Scales of NF4 that share one scale themselves: what bitsandbytes calls double quantisation."""

PASCAL = (6, 0)
TURING = (7, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    name: QuantisedName
    title: str
    bytes_per_weight: float
    """With its share of all scales that belong to blocks of weights."""
    bytes_per_row: int = 0
    """Of the scale that each output of a layer has, if it has one."""
    is_read_in_int8: bool = False
    """Whether a GPU's products read it as it is. Else it is widened first, as it is on processors
    while training; in evaluation they read it, too."""
    is_made_of_float16: bool = False
    """Whether weights pass through float16 on their way, and must fit into it."""
    capability: tuple[int, int]
    """The oldest CUDA compute capability that the package has kernels for."""
    package: str = "bitsandbytes"
    extra: str = "quantised"
    """The extra of ours that installs the package."""

    def unsupported_reason(self, hardware: Hardware) -> str:
        """Say why this machine cannot keep weights so, or nothing if it can."""
        if self.package not in hardware.packages:
            return (
                f"needs the package {self.package}, which is not installed: "
                f"pip install 'mantissa-studio[{self.extra}]'"
            )
        if hardware.device == "cpu" or hardware.capability >= self.capability:
            return ""
        oldest = min(hardware.gpus, key=lambda gpu: gpu.capability)
        return (
            f"needs a GPU of compute capability {_version_text(self.capability)} or newer; "
            f"{oldest.name} has {_version_text(oldest.capability)}"
        )


_TABLE = (
    Quantised(
        name="int8",
        title="8-bit (LLM.int8)",
        bytes_per_weight=1,
        bytes_per_row=4,
        is_read_in_int8=True,
        is_made_of_float16=True,
        capability=TURING,
    ),
    Quantised(
        name="nf4",
        title="4-bit (NF4)",
        bytes_per_weight=1 / 2 + 1 / NF4_BLOCK_SIZE + 4 / (NF4_BLOCK_SIZE * _NF4_SCALE_BLOCK_SIZE),
        capability=PASCAL,
    ),
)
QUANTISED: dict[str, Quantised] = {row.name: row for row in _TABLE}


def _version_text(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
