"""Look through the rows of a version that was made before anybody looked."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from studio.intake.quality import finding_store
from studio.protocols.tasks import TaskDir
from studio.runner.task_dispatch import ReportProgress


def scan(_folder: TaskDir, params: dict[str, Any], tell: ReportProgress) -> dict[str, Any]:
    """Note in the version's folder, `params["rows"]`, what is suspicious there, and return it."""
    found = finding_store.check_and_store(
        Path(params["rows"]), lambda share: tell("looking through the rows", share)
    )
    return {"findings": [asdict(one) for one in found]}
