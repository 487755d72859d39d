"""End a process together with its parent, even if the parent is killed."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
"""See prctl(2). A forked child does not inherit it."""


def kill_on_parent_death(is_parent_gone: Callable[[], bool]) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux only).

    Otherwise it would keep running while it loads or computes without checking its lifeline.
    `is_parent_gone` is called once, because the parent may have exited before the prctl call.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if is_parent_gone():
        os._exit(1)


def stop_on_parent_exit(lifeline: int, stop: threading.Event) -> None:
    """Set `stop` when the other end of the lifeline is closed because its owner exited or died."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(lifeline, 1):
                pass
        stop.set()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
