"""The precision modes: what number formats a run may train in.

One row a mode. Everything else that depends on precision (the form's choices, the loader, the
trainer's flags, the optimizer, the docs) reads this table and adds nothing to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from studio.hardware import Hardware
from studio.recipe.float_formats import FLOAT_FORMATS, DType, FloatFormat, MatmulDType

Rounding = Literal["nearest", "stochastic", "kahan"]
PrecisionName = Literal[
    "bf16",
    "fp16",
    "fp32",
    "fp32_tf32",
    "fp32_bf16_matmul",
    "bf16_dual",
    "bf16_pure",
    "bf16_stochastic",
    "bf16_kahan",
    "fp8",
]
AUTO: Literal["auto"] = "auto"
"""In a recipe: the studio chooses what it recommends for the model and the machine."""

PrecisionChoice = Literal["auto", PrecisionName]

ADA = (8, 9)
AMPERE = (8, 0)
VOLTA = (7, 0)
_BF16_DETECTION = (
    "its compute capability, 8.0 or newer; on processors, the flags avx512_bf16 and amx_bf16"
)


_UNNOTICED_SLOWDOWN = 1.05
"""A product that takes up to this many times as long as in float32 needs no caution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    name: PrecisionName
    title: str
    summary: str
    """One sentence for a person who has to choose."""
    is_common: bool = False
    """Whether most people will choose among it and its like."""

    weights: DType = "float32"
    compute: DType = "float32"
    """What comes out of a matrix product."""
    matmul: MatmulDType = "float32"
    """What goes into a matrix product."""
    matmul_of_gradients: MatmulDType | None = None
    """What goes into it of a gradient, on the way back; None is as on the way forth."""
    gradients: DType = "float32"
    optimizer_states: DType = "float32"
    master: DType | None = None
    """The format of a second copy of the weights, kept by the optimizer."""
    optimizer: str = "AdamW"
    """The optimizer that full fine-tuning uses, in words."""
    rounding: Rounding | None = None
    """How an update is written into 16-bit weights; None leaves the recipe its own optimizer."""
    scaler: bool = False
    """Whether the loss is scaled up so that small gradients survive float16."""
    bytes_per_parameter: int = 16
    """Weight, gradient, all that AdamW keeps, and the 16-bit copy that autocast keeps."""

    reduce_dtype: DType = "float32"
    """Sharded over several GPUs (FSDP), what their gradients are summed in.

    A sum of many short numbers loses digits: each format of products keeps it wide, as
    TransformerEngine advises.
    """

    package: str = ""
    """The optional package it needs, if any."""
    extra: str = ""
    """The extra of ours that installs the package."""
    needs: str = "any"
    """The hardware it is meant for, in words."""
    detected: str = "nothing to detect"
    """What the studio looks at to find out, in words."""
    capability: tuple[int, int] | None = None
    """The oldest CUDA compute capability that computes in it natively."""
    is_gpu_only: bool = False
    trainer_flags: dict[str, bool] = field(default_factory=lambda: {"bf16": False, "fp16": False})

    @property
    def format(self) -> FloatFormat:
        """The bits of the numbers it multiplies."""
        return FLOAT_FORMATS[self.matmul]

    @property
    def autocast(self) -> DType | None:
        """The format that products are cast to on the fly, where that is not the weights' own."""
        return self.compute if self.compute != self.weights else None

    @property
    def products(self) -> str:
        """What goes into a matrix product, in words."""
        back = self.matmul_of_gradients
        return f"{self.matmul} ({back} of gradients)" if back else self.matmul

    @property
    def param_dtype(self) -> DType:
        """Sharded over several GPUs (FSDP), what each gathers the others' weights in."""
        return self.compute

    @property
    def is_float8(self) -> bool:
        """Whether linear layers are exchanged for others, which cast what they read."""
        return self.matmul.startswith("float8")

    @property
    def is_for_all_weights(self) -> bool:
        """Whether it is about the weights trained: none for adapters, which are float32."""
        return self.rounding is not None or self.is_float8

    def unsupported_reason(self, hardware: Hardware) -> str:
        """Say why this machine cannot run the mode, or nothing if it can."""
        if self.package and self.package not in hardware.packages:
            return (
                f"needs the package {self.package}, which is not installed: "
                f"pip install 'mantissa-studio[{self.extra}]'"
            )
        if hardware.device == "cpu":
            only = f"needs {self.needs}; here runs train on the processor"
            return only if self.is_gpu_only else ""
        if self.capability is None or hardware.capability >= self.capability:
            return ""
        oldest = min(hardware.gpus, key=lambda gpu: gpu.capability)
        is_absent = self.is_gpu_only or self.is_float8
        lack = "does not have it" if is_absent else "only emulates it"
        return (
            f"needs compute capability {_version_text(self.capability)} or newer; "
            f"{oldest.name} has {_version_text(oldest.capability)}, which {lack}"
        )

    def warning(self, hardware: Hardware) -> str:
        """Say what a person should know before choosing it here, or nothing."""
        if self.matmul == "bfloat16" and self.compute == "float32":
            return "emulated wherever the hardware does not round by itself: right, but slower"
        if hardware.device != "cpu":
            # https://docs.pytorch.org/ao/stable/workflows/training.html: casting has its price.
            return "only large layers get faster: small ones lose time" if self.is_float8 else ""
        if self.is_float8:
            return "processors emulate 8 bits: right numbers, but slow"
        return self._slowdown_warning(hardware)

    def _slowdown_warning(self, hardware: Hardware) -> str:
        """Say how much slower than float32 a processor is: as measured, or as it is known to be."""
        times = hardware.product_times.get(self.compute)
        if times is not None:
            slow = (
                f"right numbers, but matrix products take {times:.2g} times as long as in float32"
            )
            return slow if times > _UNNOTICED_SLOWDOWN else ""
        if self.compute == "float16":
            return "no processor computes float16 fast: right numbers, but slower than float32"
        if self.compute == "bfloat16" and not hardware.native_bf16:
            return "this processor emulates bfloat16: right numbers, but slow"
        return ""


_TABLE = (
    Precision(
        name="bf16",
        title="bfloat16 mixed",
        summary="The range of float32 at half the width: the safe choice on recent hardware.",
        is_common=True,
        compute="bfloat16",
        matmul="bfloat16",
        bytes_per_parameter=18,
        needs="NVIDIA Ampere or newer; processors emulate it or have it",
        detected=_BF16_DETECTION,
        capability=AMPERE,
        trainer_flags={"bf16": True, "fp16": False},
    ),
    Precision(
        name="fp16",
        title="float16 mixed",
        summary="Finer steps but a narrow range: fast on older GPUs; the loss is scaled.",
        is_common=True,
        compute="float16",
        matmul="float16",
        scaler=True,
        bytes_per_parameter=18,
        needs="NVIDIA Volta or newer; slow on processors",
        detected="its compute capability, 7.0 or newer",
        capability=VOLTA,
        trainer_flags={"bf16": False, "fp16": True},
    ),
    Precision(
        name="fp32",
        title="float32",
        summary="The reference: every number in full width. Slowest, and never in doubt.",
        is_common=True,
    ),
    Precision(
        name="fp32_tf32",
        title="float32 with TF32 products",
        summary="Matrix products read 19 bits, all else keeps 32: float32 sped up at a small cost.",
        matmul="tf32",
        needs="an NVIDIA GPU, Ampere or newer",
        detected="its compute capability, 8.0 or newer; then by a product that tells",
        capability=AMPERE,
        is_gpu_only=True,
    ),
    Precision(
        name="fp32_bf16_matmul",
        title="float32 with bfloat16 products",
        summary="What TPUs do by default: float32 is kept, but products read bfloat16.",
        matmul="bfloat16",
        needs="any; processors with AMX may do it by themselves",
        detected="by a product that tells; if it reads more, inputs are rounded before each one",
    ),
    Precision(
        name="bf16_dual",
        title="bfloat16 weights, float32 master",
        summary="The optimizer keeps the true weights in float32; the model works on a short copy.",
        weights="bfloat16",
        compute="bfloat16",
        matmul="bfloat16",
        gradients="bfloat16",
        master="float32",
        optimizer="AdamW with float32 master",
        rounding="nearest",
        needs="NVIDIA Ampere or newer; processors emulate it or have it",
        detected=_BF16_DETECTION,
        capability=AMPERE,
    ),
    Precision(
        name="bf16_pure",
        title="bfloat16 throughout",
        summary="Half the memory, but small updates round to nothing: it stalls at low rates.",
        weights="bfloat16",
        compute="bfloat16",
        matmul="bfloat16",
        gradients="bfloat16",
        optimizer_states="bfloat16",
        rounding="nearest",
        bytes_per_parameter=8,
        needs="NVIDIA Ampere or newer; processors emulate it or have it",
        detected=_BF16_DETECTION,
        capability=AMPERE,
    ),
    Precision(
        name="bf16_stochastic",
        title="bfloat16, stochastic rounding",
        summary="Half the memory; a die decides each rounding, so small updates count on average.",
        weights="bfloat16",
        compute="bfloat16",
        matmul="bfloat16",
        gradients="bfloat16",
        optimizer_states="bfloat16",
        optimizer="AdamW, stochastic rounding",
        rounding="stochastic",
        bytes_per_parameter=8,
        needs="NVIDIA Ampere or newer; processors emulate it or have it",
        detected=_BF16_DETECTION,
        capability=AMPERE,
    ),
    Precision(
        name="bf16_kahan",
        title="bfloat16, Kahan summation",
        summary="What rounding cuts off is kept and added the next time: small updates add up.",
        weights="bfloat16",
        compute="bfloat16",
        matmul="bfloat16",
        gradients="bfloat16",
        optimizer_states="bfloat16",
        optimizer="AdamW, Kahan",
        rounding="kahan",
        bytes_per_parameter=10,
        needs="NVIDIA Ampere or newer; processors emulate it or have it",
        detected=_BF16_DETECTION,
        capability=AMPERE,
    ),
    Precision(
        name="fp8",
        title="float8 mixed",
        summary="Linear layers multiply 8 bits, gradients as e5m2; all else is bfloat16 mixed.",
        compute="bfloat16",
        matmul="float8_e4m3fn",
        matmul_of_gradients="float8_e5m2",
        package="torchao",
        extra="fp8",
        needs="torchao, and NVIDIA Ada, Hopper or newer; processors emulate it",
        detected="its compute capability, 8.9 or newer; then by each layer's own product",
        capability=ADA,
        trainer_flags={"bf16": True, "fp16": False},
    ),
)
PRECISIONS: Mapping[str, Precision] = {mode.name: mode for mode in _TABLE}


def _version_text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
