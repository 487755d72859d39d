"""The most memory a run has held while it trained, and how that was measured.

On a GPU that is what torch has allocated there. On a processor it is resident memory above that
of the moment before the model was loaded: else the libraries would drown a small model.
"""

import ctypes
import resource
import sys
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What sets the high-water mark of resident memory back to now: proc(5)."""

ALLOCATED = "allocated"
ABOVE_START = "above_start"
WHOLE = "whole"


class Gauge:
    """A high-water mark. Made just before the model is loaded, set back when training begins."""

    def __init__(self) -> None:
        self.method = ALLOCATED if torch.cuda.is_available() else _method()
        self._before = 0
        if self.method == ABOVE_START:
            # Pages that are free but kept would hold a part of the model unseen.
            ctypes.CDLL(None).malloc_trim(0)
            self._before = _resident("VmRSS")

    def set_back(self) -> None:
        """Forget what loading took: from now on training alone counts, with all that it holds."""
        if self.method == ALLOCATED:
            torch.cuda.reset_peak_memory_stats()
        elif self.method == ABOVE_START:
            _CLEAR.write_text(_RESET_PEAK, encoding="ascii")

    def peak_bytes(self) -> int:
        if self.method == ALLOCATED:
            return torch.cuda.max_memory_allocated()
        if self.method == ABOVE_START:
            return max(0, _resident("VmHWM") - self._before)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def told(self) -> dict[str, Any]:
        return {"peak_memory": self.method}


def _method() -> str:
    """Return what this system lets be measured."""
    try:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
        _resident("VmHWM")
    except (OSError, LookupError):
        return WHOLE
    return ABOVE_START if hasattr(ctypes.CDLL(None), "malloc_trim") else WHOLE


def _resident(name: str) -> int:
    """Return a line of the process's status, in bytes."""
    told = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="utf-8").splitlines())
    return int(told[name].split()[0]) * 1024
