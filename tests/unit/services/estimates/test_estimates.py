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
def test_every_way_to_train_is_worked_out_without_a_dry_run(on_gpu: bool) -> None:  # noqa: FBT001 -- a case
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
def test_an_estimate_says_what_it_assumes(
    precision: str,
    base: str,
    on_gpu: bool,  # noqa: FBT001 -- a case
    expected: tuple[str, ...],
) -> None:
    recipe, _name = way(precision, base)

    assert tuple(estimates.list_assumptions(recipe, FACTS, on_gpu=on_gpu)) == expected


def test_two_runs_teach_nothing() -> None:
    by = known(seen(RECIPE, 1.5), seen(RECIPE, 1.5))

    assert need(by).correction.factor == 1.0


def test_three_runs_correct_by_their_median() -> None:
    by = known(*(seen(RECIPE, ratio) for ratio in (1.1, 1.2, 1.9)))

    assert need(by).correction.factor == pytest.approx(1.2)
    assert need(by).total == pytest.approx(1.2 * need(by).estimate.total)


def test_runs_in_another_precision_correct_nothing() -> None:
    other = make_recipe(precision="bf16", adapter={"kind": "full"})
    by = known(*(seen(other, 1.5) for _ in range(3)))

    assert need(by).correction.runs == 0


def test_the_lengths_a_run_has_found_are_those_of_the_next() -> None:
    by = known(seen(RECIPE, 1.0))

    assert need(known()).estimate.length == 200
    assert need(by).estimate.length == 100


def test_examples_that_were_cut_tell_nothing_of_a_longer_limit() -> None:
    longer = make_recipe(precision="fp32", adapter={"kind": "full"}, data={"max_length": 400})
    cut = replace(seen(RECIPE, 1.0), resolved=TOLD | {"longest_example": 200})

    assert need(known(cut), longer).estimate.length == 400


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.5, "fits"), (0.86, "tight"), (1.01, "too large")]
)
def test_a_need_is_judged_against_the_room(share: float, verdict: str) -> None:
    found = need(known())
    room = round((found.total + found.overhead_bytes) / share)

    assert replace(found, room=room).verdict == verdict


def test_a_run_is_held_to_what_was_estimated_when_it_was_submitted() -> None:
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


def test_a_peak_with_libraries_in_it_is_held_against_nothing() -> None:
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


def test_packed_rows_are_counted_by_the_examples_they_fill() -> None:
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
