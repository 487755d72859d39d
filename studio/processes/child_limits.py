"""Limit what a child that runs a stranger's program may use."""

import resource
import signal
from contextlib import suppress


def limit(memory_bytes: int, cpu_seconds: int) -> None:
    """Limit this process for good: nothing but memory, time and the files that it has open.

    `memory_bytes` is all of its address space.
    """
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 16),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # Some systems do not know all of them.
            resource.setrlimit(what, (most, most))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
