"""Convert or inspect a file, here or in another process, and what the processes send each other."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from studio.errors import InvalidError, TooLargeError
from studio.intake.conversion.converter import (
    ConversionResult,
    SourceFile,
    convert_file,
    inspect_file,
)
from studio.intake.detection.row_shapes import DetectedMapping, UnrecognisedError
from studio.intake.files.format_detection import detect_format
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits, ProgressCallback, SlowReadingError
from studio.intake.files.packages import load_arrow, load_excel
from studio.intake.mapping import Mapping
from studio.intake.quality import dataset_checks
from studio.settings import without_secrets

DETECTED_MAPPING_ADAPTER = TypeAdapter(DetectedMapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult:
    """What was detected in an uploaded file, as one process sends it to another."""

    format: str
    detected: dict[str, Any]
    """A `DetectedMapping` as JSON.

    Empty if no column is recognised, because the user may know better.
    """


DETECTION_RESULT_ADAPTER = TypeAdapter(DetectionResult)


def detect_format_only(source: SourceFile) -> DetectionResult:
    """Return a file's format from its first bytes, when detecting its rows must wait.

    Raises:
        InvalidError: the format is not supported.

    """
    return DetectionResult(format=detect_format(source.path, source.filename), detected={})


def detect_file(
    source: SourceFile, limits: Limits, mapping: Mapping | None = None
) -> DetectionResult:
    """Detect a file's format and mapping; `mapping` holds what the user has already chosen.

    Raises:
        InvalidError: it cannot be read, or no row can be trained on.

    """
    kind = detect_format(source.path, source.filename)
    try:
        detected: dict[str, Any] = DETECTED_MAPPING_ADAPTER.dump_python(
            inspect_file(source, limits, mapping).detected, mode="json"
        )
    except UnrecognisedError:
        detected = {}
    return DetectionResult(format=kind, detected=detected)


READ_SHARE = 0.7
"""The share of the work after which the rows are written and the data checks begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionJob:
    source: SourceFile
    mapping: Mapping | None
    """None detects it from the file."""
    limits: Limits
    validation: SourceFile | None = None
    """A second file, whose rows are for validation."""

    def write_rows(
        self, folder: Path, on_progress: ProgressCallback = lambda _share: None
    ) -> ConversionResult:
        """Write the rows of the whole file to a folder, with the findings in them.

        Raises:
            InvalidError: the mapping does not fit the file, or no row is left.
            TooLargeError: it unpacks to more than the limit.

        """
        source, limits = self.source, self.limits
        result = convert_file(
            source,
            self.mapping,
            folder,
            limits,
            lambda share: on_progress(READ_SHARE * share),
            self.validation,
        )
        report = dataset_checks.check_and_store(
            folder, lambda share: self._report_in_time(on_progress, share)
        )
        return replace(result, findings=report.findings, answers=report.answers)

    def _report_in_time(self, on_progress: ProgressCallback, share: float) -> None:
        if self.limits.deadline is not None:
            self.limits.deadline.check()
        on_progress(READ_SHARE + (1 - READ_SHARE) * share)


CONVERSION_JOB_ADAPTER = TypeAdapter(ConversionJob)
CONVERSION_RESULT_ADAPTER = TypeAdapter(ConversionResult)
"""Serialise them between processes."""


MAX_MEMORY_BYTES = 2**30
CHECKED_FORMATS: dict[Format, Callable[[], object]] = {
    "parquet": load_arrow,
    "arrow": load_arrow,
    "xlsx": load_excel,
}
"""The formats that may use much memory at once, or crash, and what loads their library."""
_COMMAND = (sys.executable, "-m", "studio.runner.check_file")
_WALL_SECONDS = 120.0
"""Generous, because a busy machine may be slow to start a process; slower files become a task."""


class ChildExitCode(IntEnum):
    READ = 0
    SLOW = 10
    MEMORY = 11


def check_in_child(job: ConversionJob) -> None:
    """Refuse a small Parquet, Arrow or Excel file that would crash or exhaust this process.

    Raises:
        InvalidError: reading it crashes.
        SlowReadingError: reading it takes longer than a request may.
        TooLargeError: reading it takes too much memory.

    """
    sources = (job.source, *([job.validation] if job.validation else []))
    if not any(map(_needs_check, sources)):
        return
    code = _run_child(job)
    if code in {ChildExitCode.SLOW, -signal.SIGXCPU}:
        raise SlowReadingError("Reading the file takes too long for one request.", param="file")
    if code in {ChildExitCode.MEMORY, -signal.SIGKILL}:
        raise TooLargeError(
            f"Reading the file needs more than {MAX_MEMORY_BYTES / 1e9:.2g} GB of memory.",
            hint="Split the file, or remove rows.",
            param="file",
        )
    if code != ChildExitCode.READ:
        raise InvalidError(
            "The file is corrupted: it crashes the reader.",
            hint="Export it again, or upload the rows as JSON Lines.",
            param="file",
        )


def _needs_check(source: SourceFile) -> bool:
    try:
        return detect_format(source.path, source.filename) in CHECKED_FORMATS
    except InvalidError:
        return False  # The reader reports the error, with the field.


def _run_child(job: ConversionJob) -> int:
    try:
        return subprocess.run(  # noqa: S603 -- our own interpreter, our own module
            _COMMAND,
            input=CONVERSION_JOB_ADAPTER.dump_json(job),
            env=without_secrets(os.environ),
            capture_output=True,
            timeout=_WALL_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return ChildExitCode.SLOW
