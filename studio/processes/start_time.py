"""The start time of a process by a monotonic clock; with the PID, it identifies the process.

psutil derives the start time from the wall clock, so a clock change would make a process look like
a different one.
"""

import os
import sys
from pathlib import Path

import psutil

_START_TIME_FIELD = 19
"""The index of the start time among the fields after the name; see proc_pid_stat(5)."""


def process_start_time(pid: int) -> float:
    """Return the start time of a process in seconds: since boot on Linux, else since the epoch.

    Raises:
        psutil.NoSuchProcess: the process does not exist.

    """
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    return int(stat.rpartition(")")[2].split()[_START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")
