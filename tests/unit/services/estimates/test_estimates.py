"""Estimates of memory, held to what runs have measured."""

from dataclasses import replace

import pytest

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.recipe.base import find_conflict
from studio.recipe.precision import PRECISIONS
from studio.services.estimates import estimates, memory, reference_runs
from studio.services.estimates.activation_memory import BatchShape
from studio.services.estimates.estimates import EstimateInputs, MemoryEstimate
from studio.services.estimates.reference_runs import DataReading, ReferenceRun
from studio.weights.model_config import ModelShape
from studio.weights.model_facts import ModelFacts
from tests.support.factories import make_recipe

SHAPE = ModelShape(
    layers=4,
    hidden_size=256,
    intermediate=512,
    heads=4,
    kv_heads=4,
    head_size=64,
    vocab_size=1000,
    tied_embeddings=False,
)
FACTS = ModelFacts(
    family="llama",
    declared_dtype="float32",
    parameters=3_000_000,
    stored={"float32": 1.0},
    linear_features=20_000,
    linear_parameters=2_500_000,
    shape=SHAPE,
)
TOLD = {
    "device": detect().device,
    "longest_example": 100,
    "longest_answer": 50,
    "train_rows": 10,
    "train_tokens": 500,
}
FULL = {"kind": "full"}
BASES = ("", "native", "float32", "bfloat16", "float16", "int8", "nf4")
"""Formats of a frozen model; nothing is a full fine-tune."""
PACKED = (
    "Assumes linear layers in 4-bit (NF4) with their scales and everything else in float32; "
    "products widen one weight at a time."
)
RECIPE = make_recipe(precision="fp32", adapter={"kind": "full"}, data={"max_length": 200})


def seen(recipe: AnyRecipe, ratio: float) -> ReferenceRun:
    """Return a run that measured so many times what is estimated today."""
    guess = memory.estimate_from_resolved(recipe, FACTS, TOLD)
    assert guess is not None
    return ReferenceRun(
        recipe=recipe,
        resolved=TOLD,
        steps=10,
        tokens=1000,
        step_seconds=1.0,
        overhead_seconds=None,
        peak_bytes=guess.total * ratio,
    )


def known(*seen_before: ReferenceRun) -> EstimateInputs:
    return EstimateInputs(seen_before, lambda _name: FACTS)


def need(by: EstimateInputs, recipe: AnyRecipe = RECIPE) -> MemoryEstimate:
    found = estimates.formula_estimate(recipe, FACTS, by)
    assert found is not None
    return found


def way(precision: str, base: str = "") -> tuple[AnyRecipe, str]:
    adapter = {"kind": "lora", "base_dtype": base} if base else FULL
    return make_recipe(precision=precision, adapter=adapter), f"{precision} {base or 'full'}"


@pytest.mark.parametrize("on_gpu", [False, True])
def test_memory_estimate_exists_for_every_valid_precision(on_gpu: bool) -> None:  # noqa: FBT001 -- a case
    ways = [way(mode, base) for mode in PRECISIONS for base in BASES]
    unknown = [
        name
        for recipe, name in ways
        if find_conflict(recipe) is None
        if memory.estimate(recipe, FACTS, BatchShape(2, 100, 50), on_gpu=on_gpu) is None
    ]

    assert unknown == []


@pytest.mark.parametrize(
    ("precision", "base", "on_gpu", "expected"),
    [
        ("bf16", "native", False, ()),
        ("fp32_bf16_matmul", "", False, (estimates.EMULATED,)),
        ("fp8", "", True, (estimates.EIGHT_BITS, estimates.UNMEASURED)),
        (
            "fp32",
            "nf4",
            False,
            (PACKED,),
        ),
    ],
)
def test_estimate_lists_its_assumptions(
    precision: str,
    base: str,
    on_gpu: bool,  # noqa: FBT001 -- a case
    expected: tuple[str, ...],
) -> None:
    recipe, _name = way(precision, base)

    assert tuple(estimates.list_assumptions(recipe, FACTS, on_gpu=on_gpu)) == expected


def test_two_runs_are_too_few_for_correction() -> None:
    by = known(seen(RECIPE, 1.5), seen(RECIPE, 1.5))

    assert need(by).correction.factor == 1.0


def test_correction_uses_median_of_three_runs() -> None:
    by = known(*(seen(RECIPE, ratio) for ratio in (1.1, 1.2, 1.9)))

    assert need(by).correction.factor == pytest.approx(1.2)
    assert need(by).total == pytest.approx(1.2 * need(by).estimate.total)


def test_runs_in_other_precision_do_not_affect_correction() -> None:
    other = make_recipe(precision="bf16", adapter={"kind": "full"})
    by = known(*(seen(other, 1.5) for _ in range(3)))

    assert need(by).correction.runs == 0


def test_example_lengths_of_earlier_run_are_reused() -> None:
    by = known(seen(RECIPE, 1.0))

    assert need(known()).estimate.length == 200
    assert need(by).estimate.length == 100


def test_truncated_examples_do_not_cap_longer_max_length() -> None:
    longer = make_recipe(precision="fp32", adapter={"kind": "full"}, data={"max_length": 400})
    cut = replace(seen(RECIPE, 1.0), resolved=TOLD | {"longest_example": 200})

    assert need(known(cut), longer).estimate.length == 400


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.5, "fits"), (0.86, "tight"), (1.01, "too large")]
)
def test_memory_verdict_depends_on_available_memory(share: float, verdict: str) -> None:
    found = need(known())
    room = round((found.total + found.overhead_bytes) / share)

    assert replace(found, room=room).verdict == verdict


def test_memory_error_compares_peak_with_submitted_estimate() -> None:
    run = Run(
        experiment_id=1,
        name="r",
        recipe=RECIPE,
        status=RunStatus.SUCCEEDED,
        resolved={"peak_memory": "resident"},
        metrics={"peak_memory_bytes": 200.0},
        estimate={"memory": {"total": 150}},
    )

    assert estimates.measure_error(run).memory == pytest.approx(-0.25)


def test_memory_error_is_unknown_when_peak_includes_libraries() -> None:
    run = Run(
        experiment_id=1,
        name="r",
        recipe=RECIPE,
        status=RunStatus.SUCCEEDED,
        resolved={"peak_memory": "above_start"},
        metrics={"peak_memory_bytes": 200.0},
        estimate={"memory": {"total": 150}},
    )

    assert estimates.measure_error(run).memory is None


def test_row_lengths_predict_packed_lengths_but_not_reverse() -> None:
    packed = make_recipe(data={"max_length": 200, "packing": True})
    apart = make_recipe(data={"max_length": 200})
    told = TOLD | {"train_examples": 3, "longest_example": 190}
    of_rows, of_packs = (
        DataReading(recipe=apart, resolved=TOLD),
        DataReading(recipe=packed, resolved=told),
    )

    # Rows that were read are as good as packed into full examples; packs tell nothing of rows.
    found = [reference_runs.find_lengths([one], packed) for one in (of_rows, of_packs)]
    assert [(one.longest, one.examples, one.rows) for one in found if one] == [
        (200, 3, 10),
        (190, 3, 10),
    ]
    assert reference_runs.find_lengths([of_packs], apart) is None
    shorter = make_recipe(data={"max_length": 100, "packing": True})
    assert reference_runs.find_lengths([of_packs], shorter) is None
