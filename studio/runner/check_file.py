"""Check a file by reading it to its end.

Started as `python -m studio.runner.check_file`, with a `ConversionJob` on stdin.

Native code decompresses a Parquet or Arrow file: no limit can interrupt it, and a broken file may
crash it. A single row of an Excel workbook may be as large as the whole workbook. So this process
reads the file first, with little memory. Its exit code is a `ChildExitCode`.
"""

import resource
import signal
import sys
from collections import deque
from contextlib import suppress
from importlib import import_module

from studio.errors import StudioError
from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.job import (
    CHECKED_FORMATS,
    CONVERSION_JOB_ADAPTER,
    MAX_MEMORY_BYTES,
    ChildExitCode,
    ConversionJob,
)
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits, SlowReadingError
from studio.intake.readers import file_reader
from studio.runner.sandbox import limit_memory

_NATIVE_SECONDS = 10
"""CPU seconds beyond the limit, because native code may be reading one more batch of rows."""


def main() -> ChildExitCode:
    job = CONVERSION_JOB_ADAPTER.validate_json(sys.stdin.buffer.read())
    # Import before the clock starts: import time does not count as the file's.
    _load_libraries(job)
    limits = job.limits.for_request()
    _limit_process(limits)
    try:
        _read(job, limits)
    except SlowReadingError:
        return ChildExitCode.SLOW
    except MemoryError:
        return ChildExitCode.MEMORY
    except StudioError:
        pass  # The studio reads the file again and reports the error itself.
    return ChildExitCode.READ


def _load_libraries(job: ConversionJob) -> None:
    for source in _sources(job):
        with suppress(StudioError):  # The studio reports unreadable files itself.
            kind = detect_format(source.path, source.filename)
            if kind in CHECKED_FORMATS:
                import_module(CHECKED_FORMATS[kind])


def _limit_process(limits: Limits) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.at_once_seconds) + _NATIVE_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    limit_memory(MAX_MEMORY_BYTES)


def _read(job: ConversionJob, limits: Limits) -> None:
    for source in _sources(job):
        kind = detect_format(source.path, source.filename)
        deque(file_reader.read_rows(source.path, kind, limits), maxlen=0)


def _sources(job: ConversionJob) -> list[SourceFile]:
    return [job.source, *([job.validation] if job.validation else [])]


if __name__ == "__main__":
    sys.exit(main())
