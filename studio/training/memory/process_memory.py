"""The most memory a run has held while it trained, and how that was measured.

On a GPU that is what torch has allocated there. On a processor it is the memory of its own that
the process holds above that of the moment before the model was loaded, and frozen weights that it
reads where they lie in their file. Other pages of files are left aside: libraries, read as they are
first used, would drown a small model.
"""

import ctypes
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

_STATUS = Path("/proc/self/status")
_MAPS = Path("/proc/self/maps")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_PATH_COLUMN = 5
"""Where a line of maps names its file: proc(5)."""
_RESET_PEAK = "5"
"""What sets the high-water mark of resident memory back to now: proc(5)."""

ALLOCATED = "allocated"
RESIDENT = "resident"
WHOLE = "whole"


class MemoryProbe:
    """A high-water mark. Made just before the model is loaded, set back when training begins."""

    def __init__(self) -> None:
        self.method = ALLOCATED if torch.cuda.is_available() else _choose_method()
        self._baseline = self._peak = self._mapped = 0
        if self.method == RESIDENT:
            # Pages that are free but kept would hold a part of the model unseen.
            release_free_memory()
            self._baseline = _resident_memory()["RssAnon"]

    def reset(self, model: nn.Module | None = None) -> None:
        """Forget what loading took: from now on training alone counts, with all that it holds."""
        if self.method == ALLOCATED:
            torch.cuda.reset_peak_memory_stats()
        elif self.method == RESIDENT:
            _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
            self._peak, self._mapped = 0, _mapped_bytes(model) if model else 0

    def peak_bytes(self) -> int:
        if self.method == ALLOCATED:
            return torch.cuda.max_memory_allocated()
        if self.method == RESIDENT:
            return self._own_peak() + self._mapped
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def _own_peak(self) -> int:
        """Return the most there was at any reading: between two, few pages of files come in."""
        now = _resident_memory()
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
        own = now["VmHWM"] - now["RssFile"] - now["RssShmem"]
        self._peak = max(self._peak, own - self._baseline)
        return self._peak

    def to_dict(self) -> dict[str, Any]:
        return {"peak_memory": self.method}


def release_free_memory() -> None:
    """Give the system what is free but kept: reading the data leaves several times its size."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _choose_method() -> str:
    """Return what this system lets be measured."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
        _resident_memory()["RssFile"]
    except (OSError, LookupError):
        return WHOLE
    return RESIDENT if hasattr(ctypes.CDLL(None), "malloc_trim") else WHOLE


def _mapped_bytes(model: nn.Module) -> int:
    """Return the bytes of frozen weights that were never copied out of their file.

    Safetensors maps a file; weights that are not cast stay there, each page read as it is used.
    All of them count, also the rows of an embedding that no token has asked for yet.
    """
    lines = (line.split() for line in _MAPS.read_text(encoding="utf-8").splitlines())
    of_files = [
        line[0].split("-")
        for line in lines
        if len(line) > _PATH_COLUMN and line[_PATH_COLUMN][0] == "/"
    ]
    ranges = [(int(start, 16), int(end, 16)) for start, end in of_files]
    frozen = {one.data_ptr(): one.nbytes for one in model.parameters() if not one.requires_grad}
    return sum(
        size for place, size in frozen.items() if any(start <= place < end for start, end in ranges)
    )


def _resident_memory() -> dict[str, int]:
    """Return what the process's status says of resident memory, in bytes."""
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    told = dict(line.split(":", 1) for line in lines if line.startswith(("Rss", "VmHWM")))
    return {name: int(size.split()[0]) * 1024 for name, size in told.items()}
