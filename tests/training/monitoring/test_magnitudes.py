"""Magnitudes of weights, gradients, updates and activations, counted by power of two."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from studio.protocols.events import MagnitudesMeasured
from studio.training.monitoring.magnitudes import MagnitudeSampler, count_powers
from tests.training import tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_numbers_are_counted_by_power_of_two() -> None:
    values = torch.tensor([0.0, 1.0, -1.5, 0.25, math.nan, -math.inf, 2.0**-149, 3.0])

    counted = count_powers(values, torch.ones(8))

    assert counted is not None
    assert (counted.zero, counted.nonfinite, counted.lowest) == (0.125, 0.25, -149)
    shares = {counted.lowest + place: share for place, share in enumerate(counted.shares) if share}
    assert shares == {-149: 0.125, -2: 0.125, 0: 0.25, 1: 0.125}


def test_sample_counts_for_what_it_stands_for() -> None:
    counted = count_powers(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]))

    assert counted is not None
    assert counted.shares == [0.75, 0.25]


def test_nothing_to_count_gives_no_histogram() -> None:
    assert count_powers(torch.ones(2), torch.zeros(2)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sample_does_not_keep_output_in_memory(dtype: torch.dtype) -> None:
    sampler, output = MagnitudeSampler(), torch.ones((8, 1000), dtype=dtype)
    memory = StorageWeakRef(output.untyped_storage())  # type: ignore[no-untyped-call] # upstream is untyped
    sampler.add_output("layer", output)
    del output

    assert memory.expired()  # type: ignore[no-untyped-call] # upstream is untyped
    counted = sampler.measure({})["activations"]
    assert counted.shares == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_run_measures_magnitudes_from_first_step_to_last(
    model: Path, tmp_path: Path, adapter: str
) -> None:
    run = tiny.train(tmp_path / "run", model, adapter__kind=adapter, optimisation__max_steps=41)

    measured = tiny.events_of(run, MagnitudesMeasured)
    assert [event.step for event in measured] == [1, 11, 21, 31, 41]
    last = measured[-1].histograms
    assert sorted(last) == ["activations", "gradients", "updates", "weights"]
    for histogram in last.values():
        whole = histogram.zero + histogram.nonfinite + sum(histogram.shares)
        assert whole == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_long_run_measures_magnitudes_twenty_times(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, optimisation__max_steps=400)

    steps = [event.step for event in tiny.events_of(run, MagnitudesMeasured)]
    assert len(steps) == 20
    assert {after - before for before, after in pairwise(steps)} == {20}
