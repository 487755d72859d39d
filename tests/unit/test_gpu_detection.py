"""Which GPUs the studio gives to runs, with a program that prints nvidia-smi's lists."""

from pathlib import Path

import psutil
import pytest

from studio import gpu_detection
from studio.gpu_detection import Gpu, cuda_name, detect_gpus, hide_gpus
from tests.support import nvidia_smi
from tests.support.nvidia_smi import A100, INSTANCES, SECOND_T4, SPLIT_A100, T4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", nvidia_smi.install(tmp_path / "bin", A100, T4, SECOND_T4))
    return tmp_path / "bin"


def names(environ: dict[str, str]) -> list[str]:
    return [gpu.uuid for gpu in detect_gpus(environ)]


@pytest.mark.usefixtures("folder")
def test_all_gpus_are_found_with_their_uuids() -> None:
    first, *others = detect_gpus({})

    assert first == Gpu(
        index=0,
        name="NVIDIA A100-SXM4-40GB",
        memory_bytes=40960 * 2**20,
        capability=(8, 0),
        uuid="GPU-aaaa1111-0000",
    )
    assert [gpu.index for gpu in others] == [1, 2]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", ["GPU-bbbb2222-0000"]),
        ("2, 0", ["GPU-cccc3333-0000", "GPU-aaaa1111-0000"]),
        ("GPU-aaaa", ["GPU-aaaa1111-0000"]),
        ("GPU-", []),
        ("0,7,1", ["GPU-aaaa1111-0000"]),
        ("0,0,1", ["GPU-aaaa1111-0000"]),
        ("1,GPU-bbbb2222-0000", ["GPU-bbbb2222-0000"]),
    ],
)
def test_cuda_visible_devices_is_obeyed(visible: str, expected: list[str]) -> None:
    assert names({"CUDA_VISIBLE_DEVICES": visible}) == expected


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("studio", [{}, {"CUDA_VISIBLE_DEVICES": "1,2"}])
def test_process_without_gpus_knows_those_of_the_studio(studio: dict[str, str]) -> None:
    hidden = hide_gpus(studio)

    assert hidden["CUDA_VISIBLE_DEVICES"] == ""
    assert names(studio | hidden) == names(studio)
    assert names(studio | hide_gpus(studio | hidden)) == names(studio)
    given = hidden | {"CUDA_VISIBLE_DEVICES": "GPU-cccc3333-0000"}
    assert names(given) == ["GPU-cccc3333-0000"]


def test_split_gpu_is_replaced_by_its_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = nvidia_smi.install(tmp_path / "bin", SPLIT_A100, T4, instances=INSTANCES)
    monkeypatch.setenv("PATH", path)

    whole, large, small = detect_gpus({})
    assert (whole.name, whole.index, whole.part_of) == ("Tesla T4", 1, None)
    assert (large.name, large.index, large.uuid, large.part_of, large.capability) == (
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        2,
        "MIG-3333-0000",
        0,
        (8, 0),
    )
    # What NVIDIA lists: 19,968 and 4,864 MiB.
    assert 0.9 * 19968 * 2**20 < large.memory_bytes <= 19968 * 2**20
    assert small.memory_bytes == pytest.approx(4864 * 2**20)
    assert names({"CUDA_VISIBLE_DEVICES": "MIG-1111-0000"}) == ["MIG-1111-0000"]


def test_split_gpu_without_instances_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", nvidia_smi.install(tmp_path / "bin", SPLIT_A100, T4))

    assert [gpu.name for gpu in detect_gpus({})] == ["Tesla T4"]


@pytest.mark.parametrize(
    "printed",
    ["No devices were found", "", "0, A, B, C, D, E", "0, Old, 2000, [N/A], GPU-1, [N/A]"],
)
def test_what_cannot_be_read_is_no_gpu(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", nvidia_smi.install(tmp_path / "bin", printed, T4))

    assert [gpu.name for gpu in detect_gpus({})] == ["Tesla T4"]


def test_gpu_that_shares_memory_has_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = "0, NVIDIA GB10, [N/A], 12.1, GPU-dddd4444-0000, [N/A]"
    monkeypatch.setenv("PATH", nvidia_smi.install(tmp_path / "bin", printed))

    (gpu,) = detect_gpus({})
    assert (gpu.name, gpu.memory_bytes) == ("NVIDIA GB10", psutil.virtual_memory().total)


def test_machine_without_the_driver_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert detect_gpus({}) == ()


@pytest.mark.usefixtures("folder")
def test_gpu_is_named_by_what_stays_the_same() -> None:
    gpus = detect_gpus({})

    assert [cuda_name(index, gpus) for index in (1, 5, -1)] == ["GPU-bbbb2222-0000", "5", "-1"]
    assert cuda_name(0, [Gpu(index=0, name="", memory_bytes=0, capability=(8, 0))]) == "0"
    assert gpu_detection.VISIBLE == "CUDA_VISIBLE_DEVICES"
