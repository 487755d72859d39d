"""What is said of activation offloading before a run starts: refusal, memory, dry run."""

from dataclasses import replace

from studio.services.estimates import host_memory, measurements, memory
from studio.services.precision.incompatibilities import check
from studio.weights import known_models
from tests.support.factories import make_recipe
from tests.unit.services.estimates.test_memory_fit import LOAD, MACHINE
from tests.unit.services.precision.test_lora_variants import MODEL, SHAPE
from tests.unit.services.precision.test_quantised import HERE

OFFLOADED = {"activation_offloading": True}
DEEP = known_models.facts_from_shape(replace(SHAPE, layers=8), "llama", "bfloat16")


def test_it_is_refused_without_a_gpu() -> None:
    asked = make_recipe(precision="bf16", optimisation=OFFLOADED)
    (refusal,) = check(asked, MODEL, HERE)

    assert refusal.message == (
        "Activation offloading cannot be used here: it needs an NVIDIA GPU; on this machine, runs "
        "train on the CPU."
    )
    assert refusal.repair == {"optimisation": {"activation_offloading": False}}
    assert check(asked, MODEL, MACHINE) == []


def test_activations_wait_in_the_memory_of_the_host() -> None:
    recipes = [
        make_recipe(
            precision="bf16",
            optimisation=changes,
            evaluation={"per_device_eval_batch_size": 1},
        )
        for changes in ({}, OFFLOADED)
    ]
    device = [memory.estimate(one, DEEP, LOAD, on_gpu=True) for one in recipes]
    host = [host_memory.estimate(one, DEEP, LOAD, MACHINE) for one in recipes]

    assert device[0] is not None
    assert device[1] is not None
    assert host[0] is not None
    assert host[1] is not None
    # One layer's are on the device at a time, so another moment may be the peak.
    assert device[1].total < device[0].total - host[1].offloaded / 2
    assert 0.95 * device[0].activations < host[1].offloaded <= device[0].activations
    assert host[0].offloaded == 0
    assert host[1].total == host[1].offloaded + host[1].examples


def test_dry_run_does_not_simulate_it() -> None:
    assert "counts a single device" in measurements.explain_unsupported(
        make_recipe(precision="bf16", optimisation=OFFLOADED)
    )
