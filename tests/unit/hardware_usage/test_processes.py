"""CPU time is attributed to runs, to the studio, and to others."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from studio.hardware_usage.gpu_sensors import GpuSensors
from studio.hardware_usage.processes import ProcessInfo, ProcessScanner, compare_scans
from studio.hardware_usage.sampler import RunProcess, Sampler
from tests.support.waiting import wait_until

BUSY = "while True: pass"


def scan(*processes: tuple[int, int, str, float]) -> dict[int, ProcessInfo]:
    return {pid: ProcessInfo(pid, parent, name, cpu, 100) for pid, parent, name, cpu in processes}


def test_what_a_run_starts_belongs_to_it() -> None:
    before = scan(
        (1, 0, "init", 0), (10, 1, "worker", 0), (20, 10, "python", 0), (21, 20, "loader", 0)
    )
    after = scan(
        (1, 0, "init", 0), (10, 1, "worker", 1), (20, 10, "python", 5), (21, 20, "loader", 2)
    )

    usage = compare_scans(before, after, 10, {20: 7}, frozenset({10}))

    assert usage.run_cores == {7: pytest.approx(0.7)}
    assert usage.run_memory == {7: 200}
    assert usage.own_cores == pytest.approx(0.8)
    assert usage.own_pids == {10, 20, 21}


def test_busiest_process_of_others_is_named() -> None:
    before = scan((10, 1, "worker", 0), (30, 1, "chrome", 0), (31, 1, "make", 0))
    after = scan((10, 1, "worker", 9), (30, 1, "chrome", 6), (31, 1, "make", 1))

    usage = compare_scans(before, after, 10, {}, frozenset({10}))

    assert usage.busiest_other == "chrome"
    assert usage.busiest_other_cores == pytest.approx(0.6)


def test_process_with_a_reused_pid_starts_from_zero() -> None:
    before = {5: ProcessInfo(5, 1, "old", 100.0, 1, started=1.0)}
    after = {5: ProcessInfo(5, 1, "new", 2.0, 1, started=9.0)}

    usage = compare_scans(before, after, 10, {}, frozenset())

    assert usage.busiest_other_cores == pytest.approx(0.2)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    yield process
    process.kill()
    process.wait()


def test_sampler_measures_this_machine_and_the_process_of_a_run(
    tmp_path: Path, busy: subprocess.Popen[bytes]
) -> None:
    sampler = Sampler(tmp_path, gpus=GpuSensors(None, ()))

    samples = []

    def sees_run() -> bool:
        samples.append(sampler.sample({3: RunProcess(busy.pid, None)}))
        return bool(samples[-1].runs)

    wait_until(sees_run)

    usage = samples[-1]
    assert usage.runs[0].run_id == 3
    assert usage.runs[0].cpu > 0
    assert usage.runs[0].memory_bytes > 1_000_000
    assert 0 < usage.memory_used_bytes < usage.memory_total_bytes
    assert 0 < usage.disk_free_bytes < usage.disk_total_bytes
    assert 0 < usage.cores <= (os.cpu_count() or 1)
    assert usage.others_cpu is not None


def test_first_run_is_scanned_at_once(busy: subprocess.Popen[bytes]) -> None:
    scanner = ProcessScanner()
    scanner.scan({})
    scanner._due_at = float("inf")

    without_run = scanner.scan({})
    with_run = scanner.scan({busy.pid: 3})

    assert without_run is None
    assert with_run is not None
    assert with_run.run_memory[3] > 0
