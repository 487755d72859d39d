"""The allocator of a training process, asked in processes that start as runs do."""

import ctypes
import os
import subprocess
import sys

import pytest

from studio.worker.processes import process

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs mallinfo2 of glibc 2.33 or newer"
)

PROBE = """
import ctypes

class Info(ctypes.Structure):
    # arena, ordblks, smblks, hblks, hblkhd, usmblks and fsmblks come first, two more after.
    _fields_ = [(name, ctypes.c_size_t) for name in "0 1 2 3 4 5 6 uordblks 8 9".split()]

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo2.restype = Info
"""
CACHED = """
before = libc.mallinfo2().uordblks
for block in [libc.malloc(1000) for _ in range(7)]:
    libc.free(block)
print(libc.mallinfo2().uordblks - before >= 3000)
"""
"""Whether blocks that were freed still count as in use. ctypes takes some for itself meanwhile."""


def ask(question: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-c", PROBE + question]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(autouse=True)
def _no_tunables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)


def test_training_process_disables_malloc_cache() -> None:
    assert ask(CACHED, dict(os.environ)) == "True"
    assert ask(CACHED, process.environment(None)) == "False"


def test_existing_glibc_tunables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")

    assert process.environment(None)["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
