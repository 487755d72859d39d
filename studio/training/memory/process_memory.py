"""Measure the peak memory of a run during training, and report the method of measurement.

On a GPU, this is what torch has allocated there. On a CPU, it is the process's private memory above
its level just before the model was loaded, plus frozen weights that it reads directly from their
memory-mapped file. Other file pages are excluded: libraries, paged in on first use, would drown out
a small model.
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
"""The column of /proc/self/maps with the file's path: proc(5)."""
_RESET_PEAK = "5"
"""Resets the high-water mark of resident memory: proc(5)."""

ALLOCATED = "allocated"
RESIDENT = "resident"
WHOLE = "whole"


class MemoryProbe:
    """A high-water mark. Created just before the model loads; reset when training begins."""

    def __init__(self) -> None:
        self.method = ALLOCATED if torch.cuda.is_available() else _choose_method()
        self._baseline = self._peak = self._mapped = 0
        if self.method == RESIDENT:
            # Free pages that the allocator keeps would hide a part of the model.
            release_free_memory()
            self._baseline = _resident_memory()["RssAnon"]

    def reset(self, model: nn.Module | None = None) -> None:
        """Forget what loading took; from now on, count only training and everything it holds."""
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
        """Return the highest peak so far; between two readings few file pages are loaded."""
        now = _resident_memory()
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
        private_peak = now["VmHWM"] - now["RssFile"] - now["RssShmem"]
        self._peak = max(self._peak, private_peak - self._baseline)
        return self._peak

    def to_dict(self) -> dict[str, Any]:
        return {"peak_memory": self.method}


def release_free_memory() -> None:
    """Return free pages to the system: reading the data leaves several times its size."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _choose_method() -> str:
    """Return the method that this system supports."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
        _resident_memory()["RssFile"]
    except (OSError, LookupError):
        return WHOLE
    return RESIDENT if hasattr(ctypes.CDLL(None), "malloc_trim") else WHOLE


def _mapped_bytes(model: nn.Module) -> int:
    """Return the bytes of frozen weights that were never copied out of their file.

    Safetensors memory-maps a file. Weights that are not cast stay there, and each page is read on
    use. All of them count, including rows of an embedding that no token has used yet.
    """
    lines = (line.split() for line in _MAPS.read_text(encoding="utf-8").splitlines())
    file_ranges = [
        line[0].split("-")
        for line in lines
        if len(line) > _PATH_COLUMN and line[_PATH_COLUMN][0] == "/"
    ]
    ranges = [(int(start, 16), int(end, 16)) for start, end in file_ranges]
    frozen = {
        weight.data_ptr(): weight.nbytes
        for weight in model.parameters()
        if not weight.requires_grad
    }
    return sum(
        size
        for address, size in frozen.items()
        if any(start <= address < end for start, end in ranges)
    )


def _resident_memory() -> dict[str, int]:
    """Return the resident memory values of /proc/self/status, in bytes."""
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines if line.startswith(("Rss", "VmHWM")))
    return {name: int(size.split()[0]) * 1024 for name, size in fields.items()}
