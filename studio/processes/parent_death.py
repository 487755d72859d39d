"""Processes that end with the one that started them, however suddenly that is gone."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
"""See prctl(2). A fork starts without it."""


def kill_on_parent_death(is_parent_gone: Callable[[], bool]) -> None:
    """Have the kernel kill this process when the thread that started it ends; on Linux only.

    Otherwise it would live on for as long as it loads or computes without looking at its lifeline.
    `is_parent_gone` is asked once: the parent may have ended before the kernel knew of this.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if is_parent_gone():
        os._exit(1)


def stop_on_parent_exit(lifeline: int, stop: threading.Event) -> None:
    """Set an event as soon as the other end of a lifeline is closed: its owner ended, or died."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(lifeline, 1):
                pass
        stop.set()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
