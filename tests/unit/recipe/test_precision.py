"""What each precision can do on which machine, in words."""

import pytest

from studio.hardware import OPTIONAL_PACKAGES, Gpu, Hardware
from studio.recipe.precision import FLOAT_FORMATS, PRECISIONS, Precision, PrecisionName


def machine(
    capability: tuple[int, int] | None = None,
    *,
    native_bf16: bool = True,
    packages: frozenset[str] = frozenset(OPTIONAL_PACKAGES),
) -> Hardware:
    gpus = (
        ()
        if capability is None
        else (Gpu(index=0, name="Card", memory_bytes=2**34, capability=capability),)
    )
    return Hardware(
        processor="P",
        cores=2,
        memory_bytes=2**34,
        native_bf16=native_bf16,
        gpus=gpus,
        torch="2.13",
        packages=packages,
    )


ANYWHERE: list[PrecisionName] = [
    mode.name for mode in PRECISIONS.values() if mode.name != "fp32_tf32"
]
NARROW: list[PrecisionName] = ["bf16_dual", "bf16_pure", "bf16_stochastic", "bf16_kahan"]


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_precision_but_tf32_runs_on_cpu(name: PrecisionName) -> None:
    assert PRECISIONS[name].unsupported_reason(machine()) == ""


@pytest.mark.parametrize("name", ANYWHERE)
def test_precision_warning_states_no_slowdown_factor(name: PrecisionName) -> None:
    caution = PRECISIONS[name].warning(machine(native_bf16=False))

    assert "times" not in caution


def test_tf32_is_rejected_on_cpu() -> None:
    assert PRECISIONS["fp32_tf32"].unsupported_reason(machine()) == (
        "needs an NVIDIA GPU, Ampere or newer; on this machine, runs train on the CPU"
    )


def test_tf32_is_rejected_on_older_gpu() -> None:
    assert PRECISIONS["fp32_tf32"].unsupported_reason(machine((7, 5))) == (
        "needs compute capability 8.0 or newer; Card has 7.5, which does not support it"
    )


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_runs_on_recent_gpu(name: PrecisionName) -> None:
    assert PRECISIONS[name].unsupported_reason(machine((9, 0))) == ""


@pytest.mark.parametrize("name", NARROW)
def test_bfloat16_weights_are_rejected_on_gpu_that_emulates_them(name: PrecisionName) -> None:
    assert PRECISIONS[name].unsupported_reason(machine((7, 5))) == PRECISIONS[
        "bf16"
    ].unsupported_reason(machine((7, 5)))


def test_emulated_matmul_gives_warning() -> None:
    assert PRECISIONS["fp32_bf16_matmul"].warning(machine()) == (
        "emulated if the hardware does not round by itself: accurate, but slower"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", "bfloat16"),
        ("fp32", None),
        ("fp32_bf16_matmul", None),
        ("bf16_pure", None),
        ("fp8", "bfloat16"),
    ],
)
def test_only_mixed_precisions_use_autocast(name: PrecisionName, expected: str | None) -> None:
    assert PRECISIONS[name].autocast == expected


@pytest.mark.parametrize("mode", PRECISIONS.values(), ids=lambda mode: mode.name)
def test_bytes_per_parameter_equals_sum_of_parts(mode: Precision) -> None:
    size = {"float32": 4, "bfloat16": 2, "float16": 2, None: 0}
    # Products of 8 bits keep no copy of a weight.
    copied = None if mode.is_float8 else mode.autocast
    kept = (mode.weights, mode.gradients, mode.master, copied)
    states = size[mode.optimizer_states] * (3 if mode.rounding == "kahan" else 2)

    assert mode.bytes_per_parameter == sum(size[dtype] for dtype in kept) + states


def test_bf16_is_rejected_on_gpu_that_emulates_it() -> None:
    assert PRECISIONS["bf16"].unsupported_reason(machine((7, 5))) == (
        "needs compute capability 8.0 or newer; Card has 7.5, which only emulates it"
    )


def test_fp16_runs_on_older_gpu() -> None:
    assert PRECISIONS["fp16"].unsupported_reason(machine((7, 5))) == ""


def test_emulated_bf16_on_cpu_gives_warning() -> None:
    assert PRECISIONS["bf16"].warning(machine(native_bf16=False)) == (
        "slow on this CPU, which emulates bfloat16 (results are accurate)"
    )


def test_fp8_is_rejected_on_gpu_without_support() -> None:
    assert PRECISIONS["fp8"].unsupported_reason(machine((8, 6))) == (
        "needs compute capability 8.9 or newer; Card has 8.6, which does not support it"
    )


def test_missing_package_reason_gives_install_command() -> None:
    assert PRECISIONS["fp8"].unsupported_reason(machine((9, 0), packages=frozenset())) == (
        "needs the package torchao, which is not installed: pip install 'mantissa-studio[fp8]'"
    )


def test_emulated_fp8_on_cpu_gives_warning() -> None:
    assert PRECISIONS["fp8"].warning(machine()) == (
        "slow on this CPU, which emulates 8-bit products (results are accurate)"
    )


def test_fp8_uses_different_format_for_gradients() -> None:
    mode = PRECISIONS["fp8"]

    assert (mode.format.max, mode.format.eps) == (448.0, 2**-3)
    assert mode.matmul_text == "float8_e4m3fn (float8_e5m2 of gradients)"


@pytest.mark.parametrize("mode", PRECISIONS.values(), ids=lambda mode: mode.name)
def test_sharding_uses_compute_dtype_and_reduces_in_float32(
    mode: Precision,
) -> None:
    assert (mode.param_dtype, mode.reduce_dtype) == (mode.compute, "float32")


def test_gpu_is_ignored_when_torch_lacks_cuda() -> None:
    gpu = Gpu(index=0, name="Card", memory_bytes=2**34, capability=(9, 0))
    hardware = Hardware(
        processor="P", cores=2, memory_bytes=1, native_bf16=True, gpus=(gpu,), torch="2.13.0+cpu"
    )

    assert hardware.device == "cpu"


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("float32", 32),
        ("tf32", 19),
        ("bfloat16", 16),
        ("float16", 16),
        ("float8_e4m3fn", 8),
        ("float8_e5m2", 8),
    ],
)
def test_float_format_bits_add_up(name: str, bits: int) -> None:
    form = {str(key): value for key, value in FLOAT_FORMATS.items()}[name]

    assert form.sign + form.exponent + form.mantissa == bits
