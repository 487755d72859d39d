"""The precision modes a run may train in, and the quantised formats of frozen models (QLoRA).

Everything else that depends on them (the form's choices, the loader, the trainer's flags, the
optimizer, the docs) reads these tables, one row per mode or format, and adds nothing to them.
Embeddings, norms and the output layer are never quantised: they stay in the compute format of the
precision, and so does the output of a quantised layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from studio.hardware import Hardware
from studio.weights import safetensors_headers

DType: TypeAlias = safetensors_headers.DType
"""The formats a number can be stored in."""

MatmulDType = Literal["float32", "tf32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
"""The input formats of a matrix product: TF32 and float8 exist only inside one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    title: str
    purpose: str
    """Where it is used in training, in one sentence."""
    sign: int = 1
    exponent: int
    mantissa: int
    max: float
    eps: float
    """Distance from 1 to the next number: the smallest relative change it can hold."""
    has_infinity: bool = True
    """Otherwise its codes are ordinary numbers, and what is too large becomes the largest one."""

    @property
    def bits(self) -> int:
        return self.sign + self.exponent + self.mantissa

    @property
    def min_exponent(self) -> int:
        """The power of two of the smallest number with all mantissa bits."""
        return 2 - (1 << self.exponent - 1)

    @property
    def min_normal(self) -> float:
        """The smallest positive number with all mantissa bits."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.min_exponent - self.mantissa)


FLOAT_FORMATS: dict[MatmulDType, FloatFormat] = {
    "float32": FloatFormat(
        title="float32",
        purpose="The reference: weights and optimizer states of mixed precision.",
        exponent=8,
        mantissa=23,
        max=3.4028235e38,
        eps=2**-23,
    ),
    "tf32": FloatFormat(
        title="TF32",
        purpose="What NVIDIA GPUs may read of float32 inside a matrix product; never stored.",
        exponent=8,
        mantissa=10,
        max=3.4011621e38,
        eps=2**-10,
    ),
    "bfloat16": FloatFormat(
        title="bfloat16",
        purpose="The range of float32 with two to three digits: most training today.",
        exponent=8,
        mantissa=7,
        max=3.3895314e38,
        eps=2**-7,
    ),
    "float16": FloatFormat(
        title="float16",
        purpose="Three digits, but a narrow range: needs loss scaling.",
        exponent=5,
        mantissa=10,
        max=65504.0,
        eps=2**-10,
    ),
    "float8_e4m3fn": FloatFormat(
        title="float8 e4m3",
        purpose="Inputs of 8-bit matrix products, scaled to fit; it has no infinity.",
        exponent=4,
        mantissa=3,
        max=448.0,
        eps=2**-3,
        has_infinity=False,
    ),
    "float8_e5m2": FloatFormat(
        title="float8 e5m2",
        purpose="Gradients in 8-bit matrix products: more range, fewer digits.",
        exponent=5,
        mantissa=2,
        max=57344.0,
        eps=2**-2,
    ),
}


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
"""In a recipe: use the mode that the studio recommends for the model and the machine."""

PrecisionChoice = Literal["auto", PrecisionName]

ADA = (8, 9)
AMPERE = (8, 0)
VOLTA = (7, 0)
_BF16_DETECTION = "compute capability 8.0 or newer; on CPUs, the flags avx512_bf16 and amx_bf16"


_UNNOTICED_SLOWDOWN = 1.05
"""A matrix product needs no warning up to this multiple of its float32 time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    name: PrecisionName
    title: str
    summary: str
    """One sentence that helps users choose."""
    is_common: bool = False
    """Whether it is one of the modes that most users choose from."""

    weights: DType = "float32"
    compute: DType = "float32"
    """The format of a matrix product's output."""
    matmul: MatmulDType = "float32"
    """The format of a matrix product's inputs."""
    matmul_of_gradients: MatmulDType | None = None
    """The format of gradient inputs in the backward pass; None means as in the forward pass."""
    gradients: DType = "float32"
    optimizer_states: DType = "float32"
    master: DType | None = None
    """The format of a second copy of the weights that the optimizer keeps."""
    optimizer: str = "AdamW"
    """The optimizer of a full fine-tune, for display."""
    rounding: Rounding | None = None
    """How an update is written into 16-bit weights; None uses the recipe's optimizer."""
    scaler: bool = False
    """Whether the loss is scaled up, so that small gradients survive float16."""
    bytes_per_parameter: int = 16
    """Weight, gradient, AdamW states, and the 16-bit copy that autocast keeps."""

    reduce_dtype: DType = "float32"
    """The format in which FSDP sums gradients over several GPUs.

    Summing many narrow numbers loses digits, so every mode keeps it wide, as TransformerEngine
    advises.
    """

    package: str = ""
    """The optional package it needs, if any."""
    extra: str = ""
    """The extra of `mantissa-studio` that installs the package."""
    needs: str = "any hardware"
    """The hardware it is meant for, for display."""
    detected: str = "nothing to detect"
    """How the studio detects support, for display."""
    capability: tuple[int, int] | None = None
    """The lowest CUDA compute capability with native support."""
    is_gpu_only: bool = False
    trainer_flags: dict[str, bool] = field(default_factory=lambda: {"bf16": False, "fp16": False})

    @property
    def format(self) -> FloatFormat:
        """The bit layout of the numbers it multiplies."""
        return FLOAT_FORMATS[self.matmul]

    @property
    def autocast(self) -> DType | None:
        """The format that autocast casts to; None if that is the weights' own format."""
        return self.compute if self.compute != self.weights else None

    @property
    def matmul_text(self) -> str:
        """The input formats of a matrix product, for display."""
        back = self.matmul_of_gradients
        return f"{self.matmul} ({back} of gradients)" if back else self.matmul

    @property
    def param_dtype(self) -> DType:
        """The format in which FSDP gathers weights from other GPUs."""
        return self.compute

    @property
    def is_float8(self) -> bool:
        """Whether linear layers are replaced by layers that cast their inputs to float8."""
        return self.matmul.startswith("float8")

    @property
    def is_for_all_weights(self) -> bool:
        """Whether it changes the trained weights, so not for adapters, which are float32."""
        return self.rounding is not None or self.is_float8

    def unsupported_reason(self, hardware: Hardware) -> str:
        """Return why this machine cannot run the mode; empty if it can."""
        if self.package and self.package not in hardware.packages:
            return (
                f"needs the package {self.package}, which is not installed: "
                f"pip install 'mantissa-studio[{self.extra}]'"
            )
        if hardware.device == "cpu":
            only = f"needs {self.needs}; on this machine, runs train on the CPU"
            return only if self.is_gpu_only else ""
        if self.capability is None or hardware.capability >= self.capability:
            return ""
        oldest = min(hardware.gpus, key=lambda gpu: gpu.capability)
        is_absent = self.is_gpu_only or self.is_float8
        lack = "does not support it" if is_absent else "only emulates it"
        return (
            f"needs compute capability {_version_text(self.capability)} or newer; "
            f"{oldest.name} has {_version_text(oldest.capability)}, which {lack}"
        )

    def warning(self, hardware: Hardware) -> str:
        """Return what users should know before choosing it on this machine; empty if nothing."""
        if self.matmul == "bfloat16" and self.compute == "float32":
            return "emulated if the hardware does not round by itself: accurate, but slower"
        if hardware.device != "cpu":
            # Casting has a cost: https://docs.pytorch.org/ao/stable/workflows/training.html
            return "only large layers get faster; small ones get slower" if self.is_float8 else ""
        if self.is_float8:
            return "slow on this CPU, which emulates 8-bit products (results are accurate)"
        return self._slowdown_warning(hardware)

    def _slowdown_warning(self, hardware: Hardware) -> str:
        """Return how much slower than float32 a CPU is, from measurements if there are any."""
        times = hardware.product_times.get(self.compute)
        if times is not None:
            slow = f"accurate, but matrix products take {times:.2g} times as long as in float32"
            return slow if times > _UNNOTICED_SLOWDOWN else ""
        if self.compute == "float16":
            return "slower than float32 on any CPU (results are accurate)"
        if self.compute == "bfloat16" and not hardware.native_bf16:
            return "slow on this CPU, which emulates bfloat16 (results are accurate)"
        return ""


_PURE_BF16 = Precision(
    name="bf16_pure",
    title="bfloat16 throughout",
    summary="Half the memory, but small updates round to zero: stalls at low learning rates.",
    weights="bfloat16",
    compute="bfloat16",
    matmul="bfloat16",
    gradients="bfloat16",
    optimizer_states="bfloat16",
    rounding="nearest",
    bytes_per_parameter=8,
    needs="NVIDIA Ampere or newer; CPUs emulate it or support it natively",
    detected=_BF16_DETECTION,
    capability=AMPERE,
)

_TABLE = (
    Precision(
        name="bf16",
        title="bfloat16 mixed",
        summary="The range of float32 in half the bits: the safe choice on recent hardware.",
        is_common=True,
        compute="bfloat16",
        matmul="bfloat16",
        bytes_per_parameter=18,
        needs="NVIDIA Ampere or newer; CPUs emulate it or support it natively",
        detected=_BF16_DETECTION,
        capability=AMPERE,
        trainer_flags={"bf16": True, "fp16": False},
    ),
    Precision(
        name="fp16",
        title="float16 mixed",
        summary="Finer steps but a narrow range: fast on older GPUs; uses loss scaling.",
        is_common=True,
        compute="float16",
        matmul="float16",
        scaler=True,
        bytes_per_parameter=18,
        needs="NVIDIA Volta or newer; slow on CPUs",
        detected="compute capability 7.0 or newer",
        capability=VOLTA,
        trainer_flags={"bf16": False, "fp16": True},
    ),
    Precision(
        name="fp32",
        title="float32",
        summary="Full precision. The reference; usually slowest.",
        is_common=True,
    ),
    Precision(
        name="fp32_tf32",
        title="float32 with TF32 products",
        summary="Matrix products read 19 bits, the rest is float32: faster at a small cost.",
        matmul="tf32",
        needs="an NVIDIA GPU, Ampere or newer",
        detected="compute capability 8.0 or newer; then a test product",
        capability=AMPERE,
        is_gpu_only=True,
    ),
    Precision(
        name="fp32_bf16_matmul",
        title="float32 with bfloat16 products",
        summary="The TPU default: values stay float32, but matrix products read bfloat16.",
        matmul="bfloat16",
        needs="any; CPUs with AMX may do it natively",
        detected="a test product; if it reads more bits, inputs are rounded before each product",
    ),
    Precision(
        name="bf16_dual",
        title="bfloat16 weights, float32 master",
        summary="The optimizer keeps float32 master weights; the model uses a bfloat16 copy.",
        weights="bfloat16",
        compute="bfloat16",
        matmul="bfloat16",
        gradients="bfloat16",
        master="float32",
        optimizer="AdamW with float32 master",
        rounding="nearest",
        needs="NVIDIA Ampere or newer; CPUs emulate it or support it natively",
        detected=_BF16_DETECTION,
        capability=AMPERE,
    ),
    _PURE_BF16,
    replace(
        _PURE_BF16,
        name="bf16_stochastic",
        title="bfloat16, stochastic rounding",
        summary="Half the memory. Rounds randomly, so small updates survive on average.",
        optimizer="AdamW, stochastic rounding",
        rounding="stochastic",
    ),
    replace(
        _PURE_BF16,
        name="bf16_kahan",
        title="bfloat16, Kahan summation",
        summary="Carries rounding errors over to the next update, so small updates add up.",
        optimizer="AdamW, Kahan",
        rounding="kahan",
        bytes_per_parameter=10,
    ),
    Precision(
        name="fp8",
        title="float8 mixed",
        summary="Linear layers multiply in 8 bits, gradients as e5m2; the rest is bfloat16 mixed.",
        compute="bfloat16",
        matmul="float8_e4m3fn",
        matmul_of_gradients="float8_e5m2",
        package="torchao",
        extra="fp8",
        needs="torchao, and NVIDIA Ada, Hopper or newer; CPUs emulate it",
        detected="compute capability 8.9 or newer; then a product of each layer",
        capability=ADA,
        trainer_flags={"bf16": True, "fp16": False},
    ),
)
PRECISIONS: Mapping[str, Precision] = {mode.name: mode for mode in _TABLE}


def _version_text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


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


_QUANTISED_TABLE = (
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
QUANTISED: dict[str, Quantised] = {row.name: row for row in _QUANTISED_TABLE}
