"""The ways to compute attention: what they need. One row per way."""

from dataclasses import dataclass
from typing import Literal

from studio.hardware import Hardware

AttentionName = Literal["automatic", "sdpa", "eager", "flash_attention_2"]

_AMPERE = (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRow:
    name: AttentionName
    title: str
    package: str = ""
    """The package it needs, if any."""
    capability: tuple[int, int] | None = None
    """The lowest CUDA compute capability it has kernels for; None if it also runs on a CPU."""
    is_for_16_bits: bool = False
    """Whether it has no kernels for float32."""

    def unsupported_reason(self, hardware: Hardware) -> str:
        """Return why this machine cannot use it; empty if it can."""
        if self.capability is not None and hardware.device == "cpu":
            return "needs an NVIDIA GPU; on this machine, runs train on the CPU"
        if self.package and self.package not in hardware.packages:
            return f"needs the package {self.package}, which is not installed"
        if self.capability is not None and hardware.capability < self.capability:
            return "needs a GPU of the Ampere generation or newer"
        return ""


_TABLE = (
    AttentionRow(
        name="automatic",
        title="Automatic",
    ),
    AttentionRow(
        name="sdpa",
        title="SDPA (torch's kernels)",
    ),
    AttentionRow(
        name="eager",
        title="Eager (step by step)",
    ),
    AttentionRow(
        name="flash_attention_2",
        title="FlashAttention 2",
        package="flash_attn",
        capability=_AMPERE,
        is_for_16_bits=True,
    ),
)
ATTENTIONS: dict[AttentionName, AttentionRow] = {row.name: row for row in _TABLE}
