"""The quantised formats for the linear layers of a frozen model (QLoRA), one row per format.

The form's choices, the loader, the memory estimate, the incompatibilities and the audit read this
table. Embeddings, norms and the output layer are never quantised: they stay in the compute format
of the precision, and so does the output of a quantised layer.
"""

from dataclasses import dataclass
from typing import Literal

from studio.hardware import Hardware

QuantisedName = Literal["int8", "nf4"]

NF4_BLOCK_SIZE = 64
"""NF4 weights that share one scale."""
_NF4_SCALE_BLOCK_SIZE = 256
"""NF4 scales that share one scale themselves: what bitsandbytes calls double quantisation."""

PASCAL = (6, 0)
TURING = (7, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    name: QuantisedName
    title: str
    bytes_per_weight: float
    """Including its share of the scales of weight blocks."""
    bytes_per_row: int = 0
    """Size of the scale per layer output; 0 if there is none."""
    is_read_in_int8: bool = False
    """Whether matrix products on a GPU read it as int8. Otherwise it is widened first, as on CPUs
    during training; CPUs read int8 in evaluation."""
    is_made_of_float16: bool = False
    """Whether weights are cast to float16 before they are quantised, and must fit into it."""
    capability: tuple[int, int]
    """The lowest CUDA compute capability that the package has kernels for."""
    package: str = "bitsandbytes"
    extra: str = "quantised"
    """The extra of `mantissa-studio` that installs the package."""

    def unsupported_reason(self, hardware: Hardware) -> str:
        """Return why this machine cannot use the format; empty if it can."""
        if self.package not in hardware.packages:
            return (
                f"needs the package {self.package}, which is not installed: "
                f"pip install 'mantissa-studio[{self.extra}]'"
            )
        if hardware.device == "cpu" or hardware.capability >= self.capability:
            return ""
        oldest = min(hardware.gpus, key=lambda gpu: gpu.capability)
        return (
            f"needs a GPU with compute capability {_version_text(self.capability)} or newer; "
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
