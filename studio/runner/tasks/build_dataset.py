"""Read a file that is large or takes long: its rows, as canonical ones, in the chore's folder."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from studio.errors import StudioError
from studio.intake.conversion.detection_result import DETECTION_RESULT_ADAPTER, detect_file
from studio.intake.conversion.job import (
    CONVERSION_JOB_ADAPTER,
    CONVERSION_RESULT_ADAPTER,
    READ_SHARE,
    ConversionJob,
)
from studio.intake.files.limits import Limits
from studio.protocols.tasks import TaskDir
from studio.runner.reading_limits import limit_reading
from studio.runner.sources.chunked_file import sync_to_disk
from studio.runner.task_dispatch import ReportProgress


def build(folder: TaskDir, params: dict[str, Any], tell: ReportProgress) -> dict[str, Any]:
    """Do the reading in `params["reading"]`. Return where its rows are, and what they are.

    With `params["look"]`, return what the first rows show; without `params["write"]`, only that.
    """
    job = CONVERSION_JOB_ADAPTER.validate_python(params["reading"])
    with limit_reading(job.limits, job.source.path.stat().st_size) as limits:
        found = _preview_rows(job, limits, tell) if params.get("look") else {}
        if params.get("write", True):
            found |= _write_rows(replace(job, limits=limits), folder.files / "rows", tell)
    return found


def _preview_rows(job: ConversionJob, limits: Limits, tell: ReportProgress) -> dict[str, Any]:
    tell("looking at the first rows", None)
    return {
        "arrival": DETECTION_RESULT_ADAPTER.dump_python(
            detect_file(job.source, limits, job.mapping), mode="json"
        )
    }


def _write_rows(job: ConversionJob, rows: Path, tell: ReportProgress) -> dict[str, Any]:
    shutil.rmtree(rows, ignore_errors=True)
    rows.mkdir()
    try:
        made = job.write_rows(rows, lambda share: tell(_phase(share), share))
    except (OSError, StudioError):
        # On a full disk, half of the rows would keep the room that everything else needs.
        shutil.rmtree(rows, ignore_errors=True)
        raise
    sync_to_disk(rows)
    return {
        "rows": str(rows),
        "converted": CONVERSION_RESULT_ADAPTER.dump_python(made, mode="json"),
    }


def _phase(share: float) -> str:
    return "reading the rows" if share < READ_SHARE else "looking through the rows"
