"""What a machine's load is worth saying."""

from typing import Any

import pytest

from studio.services.hardware.usage_problems import list_problems
from tests.support.hardware_samples import GB, make_gpu, make_usage

CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"cpu": 1.0}, []),
    ({"memory_used_bytes": 15.04 * GB}, ["Memory is almost full: 94 %."]),
    (
        {"swapped_per_second": 20e6},
        ["Memory is being swapped to disk, which slows everything down."],
    ),
    ({"disk_free_bytes": 1.5 * GB}, ["The disk is almost full: 1.5 GB left."]),
    ({"celsius": 97.0}, ["The CPU is hot: 97 °C."]),
    ({"others_cpu": 0.2, "busiest_other": "make", "busiest_other_cpu": 0.2}, []),
    (
        {"others_cpu": 0.6, "busiest_other": "chrome", "busiest_other_cpu": 0.5},
        ["Another program, chrome, uses 50 % of the CPU."],
    ),
    (
        {"others_cpu": 0.6, "busiest_other": "chrome", "busiest_other_cpu": 0.1},
        ["Other programs use 60 % of the CPU."],
    ),
    ({"others_cpu": 0.6}, ["Other programs use 60 % of the CPU."]),
    ({"gpus": [make_gpu()]}, []),
    ({"gpus": [make_gpu(busy=None, celsius=None, watts=None, memory_used_bytes=None)]}, []),
    (
        {"gpus": [make_gpu(throttled_by=("power limit",))]},
        ["GPU 0 runs slower than it could. Reason: power limit."],
    ),
    (
        {"gpus": [make_gpu(index=1, memory_used_bytes=79 * GB)]},
        ["The memory of GPU 1 is almost full: 99 %."],
    ),
    (
        {"gpus": [make_gpu(others_memory_bytes=12 * GB)]},
        ["Other programs use 12 GB of the memory of GPU 0."],
    ),
    ({"gpus": [make_gpu(celsius=92.0)]}, ["GPU 0 is hot: 92 °C."]),
]


@pytest.mark.parametrize(("load", "problems"), CASES)
def test_problems_are_named(load: dict[str, Any], problems: list[str]) -> None:
    assert list_problems([make_usage(**load)] * 6) == problems


def test_peak_of_one_sample_is_no_problem() -> None:
    calm, peak = make_usage(others_cpu=0.0), make_usage(others_cpu=0.9)

    assert list_problems([peak]) == []
    assert list_problems([calm, calm, calm, calm, calm, peak]) == []


def test_gpu_that_was_throttled_for_a_moment_is_no_problem() -> None:
    calm = make_usage(gpus=[make_gpu()])
    slow = make_usage(gpus=[make_gpu(throttled_by=("power limit",))])

    assert list_problems([calm, calm, calm, calm, calm, slow]) == []


def test_only_the_last_half_minute_counts() -> None:
    busy = make_usage(others_cpu=0.9)

    assert list_problems([busy] * 50 + [make_usage(others_cpu=0.0)] * 6) == []
