"""Convert a large file, or one that takes long, to canonical rows in the task's folder.

Also check the rows of a dataset version that was created without data checks.
"""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from studio import files
from studio.errors import StudioError
from studio.intake.conversion.job import (
    CONVERSION_JOB_ADAPTER,
    CONVERSION_RESULT_ADAPTER,
    DETECTION_RESULT_ADAPTER,
    READ_SHARE,
    ConversionJob,
    detect_file,
)
from studio.intake.files.limits import Limits
from studio.intake.quality import dataset_checks
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.runner.sandbox import limit_reading


def build(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Run the conversion in `params["reading"]`. Return where its rows are, and their statistics.

    With `params["look"]`, also return a preview of the first rows; with `params["write"]` false,
    return only that.
    """
    job = CONVERSION_JOB_ADAPTER.validate_python(params["reading"])
    with limit_reading(job.limits, job.source.path.stat().st_size) as limits:
        result = _preview_rows(job, limits, report) if params.get("look") else {}
        if params.get("write", True):
            result |= _write_rows(replace(job, limits=limits), folder.files / "rows", report)
    return result


def _preview_rows(job: ConversionJob, limits: Limits, report: ReportProgress) -> dict[str, Any]:
    report("reading the first rows", None)
    return {
        "arrival": DETECTION_RESULT_ADAPTER.dump_python(
            detect_file(job.source, limits, job.mapping), mode="json"
        )
    }


def _write_rows(job: ConversionJob, rows: Path, report: ReportProgress) -> dict[str, Any]:
    shutil.rmtree(rows, ignore_errors=True)
    rows.mkdir()
    try:
        conversion = job.write_rows(
            rows,
            lambda share: report(
                "reading the rows" if share < READ_SHARE else "checking the rows", share
            ),
        )
    except (OSError, StudioError):
        # On a full disk, partial rows would take space that everything else needs.
        shutil.rmtree(rows, ignore_errors=True)
        raise
    files.sync_folder(rows)
    return {
        "rows": str(rows),
        "converted": CONVERSION_RESULT_ADAPTER.dump_python(conversion, mode="json"),
    }


def scan(_folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Check the rows in `params["rows"]`, store the findings in that folder and return them."""
    checked = dataset_checks.check_and_store(
        Path(params["rows"]), lambda share: report("checking the rows", share)
    )
    return {
        "findings": [asdict(finding) for finding in checked.findings],
        "answers": asdict(checked.answers),
    }
