"""Check a file by reading it to its end.

Started as `python -m studio.runner.check_file`, with a `ConversionJob` on stdin.

Native code decompresses a Parquet or Arrow file: no limit can interrupt it, and a broken file may
crash it. A single row of an Excel workbook may be as large as the whole workbook. So this process
reads the file first, with little memory. Its exit code is a `ChildExitCode`.

A file that takes over its reader reaches nothing: the process opens it, loads its reader and seals
itself before it reads more than the first bytes.
"""

import os
import resource
import signal
import sys
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from zoneinfo import ZoneInfo, available_timezones

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
from studio.intake.files.opened_files import open_path
from studio.intake.readers import file_reader
from studio.processes import single_thread
from studio.processes.seal import READER, WALLS, seal
from studio.runner.sandbox import limit_memory

_NATIVE_SECONDS = 10
"""CPU seconds beyond the limit, because native code may be reading one more batch of rows."""

_ENVIRONMENT = {**single_thread.ENVIRONMENT, "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""One thread, which the seal binds, and memory that is not reserved in advance: it is limited."""

_LATE_MODULES = ("studio.intake.readers.excel_rows", "uuid")
"""What readers load when they read, as a sealed process can import nothing more."""
_TIME_ZONES: list[ZoneInfo] = []
"""A zone is found without its file as long as something refers to it."""


class _PandasRefuser:
    """Keeps Arrow from loading pandas, which reads time zones from their files when it needs one.

    Marking it as absent does not: Arrow's import takes the mark for a module.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def main(walls: Collection[str] = WALLS) -> ChildExitCode:
    """Check the files of the job on stdin. Only tests of the seal do without one of its walls."""
    os.environ.update(_ENVIRONMENT)
    sys.meta_path.insert(0, _PandasRefuser)
    job = CONVERSION_JOB_ADAPTER.validate_json(sys.stdin.buffer.read())
    # Import before the clock starts: import time does not count as the file's.
    _load_libraries(job)
    limits = job.limits.for_request()
    _limit_process(limits)
    sources = [replace(source, path=open_path(source.path)) for source in _sources(job)]
    seal(READER, walls)
    try:
        _read(sources, limits)
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
                CHECKED_FORMATS[kind]()
    for name in _LATE_MODULES:
        import_module(name)
    _load_time_zones()


def _load_time_zones() -> None:
    """Load all time zones, which the columns of a file may name; others are then unknown."""
    _TIME_ZONES.extend(map(ZoneInfo, available_timezones()))
    for name in ("tzdata", "tzdata.zoneinfo"):
        sys.modules[name] = None  # type: ignore[assignment] # marks a module as absent


def _limit_process(limits: Limits) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.at_once_seconds) + _NATIVE_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    limit_memory(MAX_MEMORY_BYTES)


def _read(sources: list[SourceFile], limits: Limits) -> None:
    for source in sources:
        kind = detect_format(source.path, source.filename)
        deque(file_reader.read_rows(source.path, kind, limits), maxlen=0)


def _sources(job: ConversionJob) -> list[SourceFile]:
    return [job.source, *([job.validation] if job.validation else [])]


if __name__ == "__main__":
    sys.exit(main())
