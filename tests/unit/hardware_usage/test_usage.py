"""Several samples become one."""

from studio.hardware_usage.usage import RunUsage, merge
from tests.support.hardware_samples import GB, make_gpu, make_usage


def test_loads_are_averaged_and_memory_keeps_its_peak() -> None:
    merged = merge(
        [
            make_usage(cpu=0.2, memory_used_bytes=9 * GB, celsius=80.0),
            make_usage(cpu=0.6, memory_used_bytes=3 * GB, celsius=70.0),
        ]
    )

    assert (round(merged.cpu, 3), merged.memory_used_bytes, merged.celsius) == (0.4, 9 * GB, 80.0)


def test_sensor_that_is_missing_in_some_samples_is_averaged_over_the_others() -> None:
    merged = merge([make_usage(others_cpu=None), make_usage(others_cpu=0.3)])

    assert merged.others_cpu == 0.3


def test_sensor_that_is_missing_everywhere_stays_missing() -> None:
    assert merge([make_usage(), make_usage()]).celsius is None


def test_each_gpu_and_run_is_merged_with_itself() -> None:
    first = make_usage(
        gpus=[make_gpu(busy=1.0), make_gpu(index=1, busy=0.0)],
        runs=[RunUsage(run_id=7, cpu=0.1, memory_bytes=5)],
    )
    second = make_usage(
        gpus=[make_gpu(busy=0.5), make_gpu(index=1, busy=0.0)],
        runs=[
            RunUsage(run_id=7, cpu=0.3, memory_bytes=4),
            RunUsage(run_id=8, cpu=1, memory_bytes=1),
        ],
    )

    merged = merge([first, second])

    assert [gpu.busy for gpu in merged.gpus] == [0.75, 0.0]
    assert [(run.run_id, round(run.cpu, 3), run.memory_bytes) for run in merged.runs] == [
        (7, 0.2, 5),
        (8, 1.0, 1),
    ]
