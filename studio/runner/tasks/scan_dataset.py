"""Check the rows of a dataset version that was created without data checks."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from studio.intake.quality import dataset_checks
from studio.protocols.tasks import TaskDir
from studio.runner.task_dispatch import ReportProgress


def scan(_folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Check the rows in `params["rows"]`, store the findings in that folder and return them."""
    findings = dataset_checks.check_and_store(
        Path(params["rows"]), lambda share: report("checking the rows", share)
    )
    return {"findings": [asdict(finding) for finding in findings]}
