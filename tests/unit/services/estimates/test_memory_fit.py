"""What a run on a GPU needs of the host beside it, and that the worse of both decides."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from studio.hardware import Gpu, Hardware
from studio.services.estimates import estimates, host_memory
from studio.services.estimates.activation_memory import BatchShape
from studio.services.estimates.estimates import EstimateInputs, MemoryEstimate
from studio.services.estimates.host_memory import CUDA_HOST_BYTES, HostMemory
from studio.services.estimates.verdicts import Verdict
from studio.web.rendering.render import _environment
from studio.weights.model_facts import ModelFacts
from tests.support.factories import make_recipe
from tests.support.page_reader import parse_page
from tests.unit.services.estimates.test_estimates import FACTS, RECIPE

GIB = 2**30
GPU = Gpu(index=0, name="NVIDIA A100", memory_bytes=80 * GIB, capability=(8, 0))
MACHINE = Hardware(
    processor="x",
    cores=8,
    memory_bytes=64 * GIB,
    native_bf16=True,
    gpus=(GPU,),
    torch="2.13.0+cu130",
)
SEVEN = ModelFacts(
    family="llama",
    declared_dtype="bfloat16",
    parameters=7_000_000_000,
    stored={"bfloat16": 1.0},
    linear_features=1_000_000,
    linear_parameters=6_500_000_000,
)
LOAD = BatchShape(2, 512, 256, rows=1000, row_tokens=100.0)
LORA, FULL = {"kind": "lora", "r": 16}, {"kind": "full"}


def held(precision: str, adapter: Mapping[str, object], memory_bytes: int = 64 * GIB) -> HostMemory:
    recipe = make_recipe(precision=precision, adapter=adapter)
    machine = replace(MACHINE, memory_bytes=memory_bytes)
    found = host_memory.estimate(recipe, SEVEN, LOAD, machine)
    assert found is not None
    return found


def test_unconverted_weights_need_no_loading_memory() -> None:
    found = held("bf16", LORA)

    assert (found.loading, found.saving) == (0, 16 * 1_000_000 * 4)


def test_converted_weights_are_fully_loaded_in_host_memory() -> None:
    assert held("bf16", LORA | {"base_dtype": "float32"}).loading == 28_000_000_000
    assert held("fp32", FULL).loading == 28_000_000_000


def test_full_fine_tune_copies_all_weights_when_saving() -> None:
    found = held("bf16_pure", FULL)

    assert (found.loading, found.saving) == (0, 14_000_000_000)
    assert found.total == 14_000_000_000 + found.examples


def test_host_memory_includes_training_examples() -> None:
    assert held("bf16", LORA).examples == 1000 * (4000 + 70 * 100)


@pytest.mark.parametrize(("gibibytes", "verdict"), [(64, "fits"), (32, "tight"), (24, "too large")])
def test_host_verdict_depends_on_host_memory(gibibytes: int, verdict: Verdict) -> None:
    assert held("fp32", FULL, gibibytes * GIB).verdict == verdict


def test_host_memory_is_not_estimated_when_training_on_cpu() -> None:
    alone = replace(MACHINE, gpus=())

    assert host_memory.estimate(make_recipe(adapter=FULL), SEVEN, LOAD, alone) is None


def test_host_memory_is_unknown_when_model_is_not_local() -> None:
    unknown = replace(SEVEN, parameters=0)

    assert host_memory.estimate(make_recipe(adapter=FULL), unknown, LOAD, MACHINE) is None


@pytest.mark.parametrize(
    ("device", "host", "verdict"),
    [
        (0.5, 0.5, "fits"),
        (0.5, 0.9, "tight"),
        (0.5, 1.1, "too large"),
        (0.9, 1.1, "too large"),
        (0.9, 0.5, "tight"),
        (1.1, 0.5, "too large"),
    ],
)
def test_overall_verdict_is_worse_of_device_and_host(
    device: float, host: float, verdict: Verdict
) -> None:
    found = needed()
    own = HostMemory(loading=10 * GIB, saving=GIB, examples=0, beside=CUDA_HOST_BYTES, room=1)
    both = replace(
        found,
        room=round((found.total + found.overhead_bytes) / device),
        host=replace(own, room=round((own.total + own.beside) / host)),
    )

    assert both.verdict == verdict


def needed() -> MemoryEstimate:

    found = estimates.formula_estimate(RECIPE, FACTS, EstimateInputs((), lambda _name: FACTS))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("room", "says"),
    [
        (64 * GIB, "fits in 60 GB"),
        (11 * GIB, "10.7 GB, does not fit in 11.8 GB of host memory"),
    ],
)
def test_summary_shows_exceeded_memory_first(room: int, says: str) -> None:
    host = HostMemory(loading=10 * GIB, saving=GIB, examples=0, beside=CUDA_HOST_BYTES, room=room)
    found = replace(needed(), room=60_000_000_000, host=host)

    told = _environment().get_template("experiments/_submission_summary.html").module.holding(found)  # type: ignore[attr-defined] # a macro

    assert says in parse_page(str(told)).text
