"""Have a file whose library may take too much memory read to its end by another process first."""

import os
import signal
import subprocess
import sys
from enum import IntEnum

from studio.errors import InvalidError, TooLargeError
from studio.intake.conversion.converter import Source
from studio.intake.conversion.job import READING, Reading
from studio.intake.files.format_detection import recognise
from studio.intake.files.formats import Format
from studio.intake.files.limits import SlowReadingError
from studio.settings import without_secrets

MEMORY_BYTES = 2**30
LIBRARIES: dict[Format, str] = {
    "parquet": "pyarrow",
    "arrow": "pyarrow",
    "xlsx": "openpyxl.reader.excel",
}
"""What reads the formats that may take much memory at once, or crash."""
_COMMAND = (sys.executable, "-m", "studio.runner.check_file")
_WALL_SECONDS = 120.0
"""A busy machine may be slow to start a process; what takes longer is left to a task."""


class ChildExit(IntEnum):
    READ = 0
    SLOW = 10
    MEMORY = 11


def check_in_child(job: Reading) -> None:
    """Refuse a small Parquet, Arrow or Excel file that this process could not survive.

    Raises:
        InvalidError: reading it crashes.
        SlowReadingError: reading it takes longer than an answer may.
        TooLargeError: reading it takes too much memory.

    """
    sources = (job.source, *([job.validation] if job.validation else []))
    if not any(map(_is_checked, sources)):
        return
    code = _exit_code(job)
    if code in {ChildExit.SLOW, -signal.SIGXCPU}:
        raise SlowReadingError("Reading the file takes longer than an answer may.", param="file")
    if code in {ChildExit.MEMORY, -signal.SIGKILL}:
        raise TooLargeError(
            f"Reading the file takes more than {MEMORY_BYTES / 1e9:.2g} GB of memory.",
            hint="Split it, or leave rows out.",
            param="file",
        )
    if code != ChildExit.READ:
        raise InvalidError(
            "The file makes its reader crash: it is damaged.",
            hint="Write it again, or bring the rows as JSON lines.",
            param="file",
        )


def _is_checked(source: Source) -> bool:
    try:
        return recognise(source.path, source.filename) in LIBRARIES
    except InvalidError:
        return False  # Whoever reads it says so, and names the field.


def _exit_code(job: Reading) -> int:
    try:
        return subprocess.run(  # noqa: S603 -- our own interpreter, our own module
            _COMMAND,
            input=READING.dump_json(job),
            env=without_secrets(os.environ),
            capture_output=True,
            timeout=_WALL_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return ChildExit.SLOW
