"""The limits of a container, as the kernel's files of both versions write them."""

from pathlib import Path

import pytest

from studio.hardware_usage.cgroup_limits import CgroupUsage, read_cgroup_usage

V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
V1 = (
    "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_of_version_2_are_read_without_reclaimable_cache(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/mounts": V2,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            "sys/fs/cgroup/memory.max": "8000\n",
            "sys/fs/cgroup/memory.current": "5000\n",
            "sys/fs/cgroup/memory.stat": "anon 3000\ninactive_file 1200\n",
        },
    )

    assert read_cgroup_usage(root) == CgroupUsage(
        cores=1.5, cpu_seconds=2.5, memory_limit_bytes=8000, memory_used_bytes=3800
    )


def test_tightest_limit_on_the_path_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user.slice"
    root = write(
        tmp_path,
        {
            "proc/self/mounts": V2,
            "proc/self/cgroup": "0::/user.slice/studio.scope\n",
            f"{group}/cpu.max": "200000 100000\n",
            f"{group}/memory.max": "9000\n",
            f"{group}/memory.current": "1000\n",
            f"{group}/studio.scope/cpu.max": "max 100000\n",
            f"{group}/studio.scope/memory.max": "max\n",
            f"{group}/studio.scope/memory.current": "900\n",
        },
    )

    found = read_cgroup_usage(root)
    assert (found.cores, found.memory_limit_bytes, found.memory_used_bytes) == (2.0, 9000, 1000)


def test_limits_of_version_1_are_found_where_a_container_mounts_them(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/mounts": V1,
            # The path as the host names it, which does not exist in the container.
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage": "3000000000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "6000\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 500\n",
        },
    )

    assert read_cgroup_usage(root) == CgroupUsage(
        cores=0.5, cpu_seconds=3.0, memory_limit_bytes=7000, memory_used_bytes=5500
    )


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/mounts": V2, "proc/self/cgroup": "0::/\n"},
        {
            "proc/self/mounts": V1,
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "6000\n",
        },
        {
            "proc/self/mounts": V2,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "sys/fs/cgroup/memory.current": "5000\n",
        },
    ],
    ids=["no Linux", "no files", "version 1 without limits", "version 2 without limits"],
)
def test_without_limits_the_machine_counts(tmp_path: Path, files: dict[str, str]) -> None:
    assert read_cgroup_usage(write(tmp_path, files)) == CgroupUsage()
