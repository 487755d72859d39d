"""When a process began, by a clock that nobody sets: with its number, its name on this boot.

What psutil tells is reckoned from the time of day, which moves when the clock is set; a process
would then be taken for another one.
"""

import os
import sys
from pathlib import Path

import psutil

_START_TIME_FIELD = 19
"""The place of the start among the fields that follow the name; see proc_pid_stat(5)."""


def process_start_time(pid: int) -> float:
    """Return when a process began: on Linux in seconds since the boot, else since the epoch.

    Raises:
        psutil.NoSuchProcess: it is not there.

    """
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    return int(told.rpartition(")")[2].split()[_START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")
