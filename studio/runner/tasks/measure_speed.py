"""Measure how fast this machine multiplies matrices in each number format."""

from typing import Any

from studio.hardware import detect
from studio.protocols.tasks import TaskDir
from studio.runner.task_dispatch import ReportProgress
from studio.training.precision.matmul_speed import measure_formats


def probe(_folder: TaskDir, _params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Return the seconds that one layer's matrix products take, by format."""
    report("timing each number format", None)
    return {"seconds": measure_formats(detect().device)}
