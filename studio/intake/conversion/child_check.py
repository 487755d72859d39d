"""Read a file in a child process first, if its library may use too much memory or crash."""

import os
import signal
import subprocess
import sys
from enum import IntEnum

from studio.errors import InvalidError, TooLargeError
from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.job import CONVERSION_JOB_ADAPTER, ConversionJob
from studio.intake.files.format_detection import detect_format
from studio.intake.files.formats import Format
from studio.intake.files.limits import SlowReadingError
from studio.settings import without_secrets

MAX_MEMORY_BYTES = 2**30
CHECKED_FORMATS: dict[Format, str] = {
    "parquet": "pyarrow",
    "arrow": "pyarrow",
    "xlsx": "openpyxl.reader.excel",
}
"""The reader library of each format that may use much memory at once, or crash."""
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
