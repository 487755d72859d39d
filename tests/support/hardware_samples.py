"""Samples of a machine's load, with every sensor or with few."""

from datetime import UTC, datetime, timedelta
from typing import Any

from studio.hardware_usage.usage import GpuUsage, HardwareUsage
from studio.services.hardware.usage_history import Point

GB = 10**9


def make_usage(**values: Any) -> HardwareUsage:  # noqa: ANN401 -- any field
    calm = {
        "host": "box",
        "cores": 4.0,
        "cpu": 0.5,
        "memory_used_bytes": 4 * GB,
        "memory_total_bytes": 16 * GB,
        "disk_free_bytes": 100 * GB,
        "disk_total_bytes": 500 * GB,
    }
    return HardwareUsage.model_validate(calm | values)


def make_gpu(**values: Any) -> GpuUsage:  # noqa: ANN401 -- any field
    calm = {"index": 0, "name": "H100", "busy": 0.9, "celsius": 60.0, "watts": 300.0}
    memory = {"memory_used_bytes": 40 * GB, "memory_total_bytes": 80 * GB, "watts_limit": 700.0}
    return GpuUsage.model_validate(calm | memory | values)


def make_point(usage: HardwareUsage | None = None, *, seconds_ago: float = 0) -> Point:
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return Point(at=at, usage=usage or make_usage())
