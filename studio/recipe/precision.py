"""The precision modes: what number formats a run may train in.

One row a mode. Everything else that depends on precision (the form's choices, the loader, the
trainer's flags, the docs) reads this table and adds nothing to it.
"""

from dataclasses import dataclass, field
from typing import Literal

from studio.hardware import Hardware

DType = Literal["float32", "bfloat16", "float16"]
PrecisionName = Literal["fp32", "bf16", "fp16"]

AMPERE = (8, 0)
VOLTA = (7, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A floating-point format: how its bits are spent, and what that buys."""

    sign: int = 1
    exponent: int
    mantissa: int
    largest: float
    step: float
    """Distance from 1 to the next number: the smallest relative change it can hold."""


FORMATS: dict[DType, Format] = {
    "float32": Format(exponent=8, mantissa=23, largest=3.4028235e38, step=2**-23),
    "bfloat16": Format(exponent=8, mantissa=7, largest=3.3895314e38, step=2**-7),
    "float16": Format(exponent=5, mantissa=10, largest=65504.0, step=2**-10),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    name: PrecisionName
    title: str
    summary: str
    """One sentence for a person who has to choose."""
    weights: DType
    compute: DType
    gradients: DType
    optimizer_states: DType
    scaler: bool
    """Whether the loss is scaled up so that small gradients survive float16."""
    bytes_per_parameter: int
    """Weight, gradient, two AdamW states, and the 16-bit copy that autocast keeps."""
    needs: tuple[int, int] | None = None
    """The oldest CUDA compute capability that computes in it natively."""
    trainer_flags: dict[str, bool] = field(default_factory=dict)

    @property
    def format(self) -> Format:
        """The bits of the format it computes in."""
        return FORMATS[self.compute]

    def refusal(self, hardware: Hardware) -> str:
        """Say why this machine cannot run the mode, or nothing if it can."""
        if hardware.device == "cpu" or self.needs is None or hardware.capability >= self.needs:
            return ""
        oldest = min(hardware.gpus, key=lambda gpu: gpu.capability)
        return (
            f"needs compute capability {_dotted(self.needs)} or newer; "
            f"{oldest.name} has {_dotted(oldest.capability)}, which only emulates it"
        )

    def caution(self, hardware: Hardware) -> str:
        """Say what a person should know before choosing it here, or nothing."""
        if hardware.device != "cpu":
            return ""
        if self.compute == "float16":
            return "no processor computes float16 fast: right numbers, about 30 times the time"
        if self.compute == "bfloat16" and not hardware.native_bf16:
            return "this processor emulates bfloat16: right numbers, but slow"
        return ""


PRECISIONS: dict[PrecisionName, Precision] = {
    mode.name: mode
    for mode in (
        Precision(
            name="bf16",
            title="bfloat16 mixed",
            summary="The range of float32 at half the width: the safe choice on recent hardware.",
            weights="float32",
            compute="bfloat16",
            gradients="float32",
            optimizer_states="float32",
            scaler=False,
            bytes_per_parameter=18,
            needs=AMPERE,
            trainer_flags={"bf16": True, "fp16": False},
        ),
        Precision(
            name="fp16",
            title="float16 mixed",
            summary="Finer steps but a narrow range: fast on older GPUs; the loss is scaled.",
            weights="float32",
            compute="float16",
            gradients="float32",
            optimizer_states="float32",
            scaler=True,
            bytes_per_parameter=18,
            needs=VOLTA,
            trainer_flags={"bf16": False, "fp16": True},
        ),
        Precision(
            name="fp32",
            title="float32",
            summary="The reference: every number in full width. Slowest, and never in doubt.",
            weights="float32",
            compute="float32",
            gradients="float32",
            optimizer_states="float32",
            scaler=False,
            bytes_per_parameter=16,
            trainer_flags={"bf16": False, "fp16": False},
        ),
    )
}


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
