"""What each precision can do on which machine, in words."""

import pytest

from studio.hardware import Gpu, Hardware
from studio.recipe.precision import FORMATS, PRECISIONS, PrecisionName


def machine(capability: tuple[int, int] | None = None, *, native_bf16: bool = True) -> Hardware:
    gpus = (
        ()
        if capability is None
        else (Gpu(index=0, name="Card", memory_bytes=2**34, capability=capability),)
    )
    return Hardware(
        processor="P", cores=2, memory_bytes=2**34, native_bf16=native_bf16, gpus=gpus, torch="2.13"
    )


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_mode_runs_on_a_processor(name: PrecisionName) -> None:
    assert PRECISIONS[name].refusal(machine()) == ""


def test_bf16_is_refused_where_it_is_only_emulated() -> None:
    assert PRECISIONS["bf16"].refusal(machine((7, 5))) == (
        "needs compute capability 8.0 or newer; Card has 7.5, which only emulates it"
    )


def test_fp16_runs_on_older_cards() -> None:
    assert PRECISIONS["fp16"].refusal(machine((7, 5))) == ""


def test_an_emulated_bf16_is_cautioned_against() -> None:
    assert PRECISIONS["bf16"].caution(machine(native_bf16=False)) == (
        "this processor emulates bfloat16: right numbers, but slow"
    )


def test_a_gpu_without_cuda_torch_counts_as_none() -> None:
    gpu = Gpu(index=0, name="Card", memory_bytes=2**34, capability=(9, 0))
    hardware = Hardware(
        processor="P", cores=2, memory_bytes=1, native_bf16=True, gpus=(gpu,), torch="2.13.0+cpu"
    )

    assert hardware.device == "cpu"


@pytest.mark.parametrize(("name", "bits"), [("float32", 32), ("bfloat16", 16), ("float16", 16)])
def test_bits_add_up(name: str, bits: int) -> None:
    form = {str(key): value for key, value in FORMATS.items()}[name]

    assert form.sign + form.exponent + form.mantissa == bits
