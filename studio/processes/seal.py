"""Take from a process what a stranger's program or file does not need: files, network, processes.

Linux only. Two walls, each of which holds without the other, and neither can be taken down again:

* seccomp allows the few system calls of a profile, by which Python computes and uses open files,
  and refuses all others with EPERM, those that future kernels add included. This is what counts as
  a seal.
* Landlock forbids all paths, and connections and signals where the kernel knows how.

No profile opens a path: a process loads and opens what it needs, seals itself, and only then runs
the program or reads the file. Only the standard library is imported here, because a grader's
process starts without any other package.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS = 38
"""See prctl(2)."""
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
"""See seccomp(2): the operation, and the flag that seals the threads that run already, too."""

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
"""BPF instructions: load a word, compare it with a constant, test its bits, return."""
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16
"""Where `struct seccomp_data` has the system call, the architecture it was made for, and its
arguments of 8 bytes each, the lower 4 first."""
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Their numbers in linux/audit.h."""

_SECCOMP = {"x86_64": 317, "aarch64": 277}

CALLS: dict[str, dict[str, int]] = {
    "read": {"x86_64": 0, "aarch64": 63},
    "write": {"x86_64": 1, "aarch64": 64},
    "close": {"x86_64": 3, "aarch64": 57},
    "fstat": {"x86_64": 5, "aarch64": 80},
    "lseek": {"x86_64": 8, "aarch64": 62},
    "mmap": {"x86_64": 9, "aarch64": 222},
    "mprotect": {"x86_64": 10, "aarch64": 226},
    "munmap": {"x86_64": 11, "aarch64": 215},
    "brk": {"x86_64": 12, "aarch64": 214},
    "mremap": {"x86_64": 25, "aarch64": 216},
    "madvise": {"x86_64": 28, "aarch64": 233},
    "rt_sigaction": {"x86_64": 13, "aarch64": 134},
    "rt_sigprocmask": {"x86_64": 14, "aarch64": 135},
    "rt_sigreturn": {"x86_64": 15, "aarch64": 139},
    "sigaltstack": {"x86_64": 131, "aarch64": 132},
    "nanosleep": {"x86_64": 35, "aarch64": 101},
    "clock_nanosleep": {"x86_64": 230, "aarch64": 115},
    "clock_gettime": {"x86_64": 228, "aarch64": 113},
    "clock_getres": {"x86_64": 229, "aarch64": 114},
    "gettimeofday": {"x86_64": 96, "aarch64": 169},
    "time": {"x86_64": 201},
    "times": {"x86_64": 100, "aarch64": 153},
    "getrusage": {"x86_64": 98, "aarch64": 165},
    "getrandom": {"x86_64": 318, "aarch64": 278},
    "getpid": {"x86_64": 39, "aarch64": 172},
    "gettid": {"x86_64": 186, "aarch64": 178},
    "futex": {"x86_64": 202, "aarch64": 98},
    "sched_yield": {"x86_64": 24, "aarch64": 124},
    "restart_syscall": {"x86_64": 219, "aarch64": 128},
    "exit": {"x86_64": 60, "aarch64": 93},
    "exit_group": {"x86_64": 231, "aarch64": 94},
    "pread64": {"x86_64": 17, "aarch64": 67},
    "ftruncate": {"x86_64": 77, "aarch64": 46},
    "fcntl": {"x86_64": 72, "aarch64": 25},
}
"""The system calls that some profile allows.

The numbers of aarch64 are from include/uapi/asm-generic/unistd.h and were not tried on such a
machine. As all other calls are refused, a wrong number makes sealed work fail; it opens no file.
"""

_F_DUPFD_CLOEXEC = 1030
"""See fcntl(2): another descriptor for an open file, which `mmap` keeps."""
_PROT_EXEC = 4
"""See mmap(2): memory whose content is run."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What one argument of a call must be for the call to be allowed."""

    place: int
    """Of the argument, from 0."""
    equals: int | None = None
    lacks: int = 0
    """Bits that it must not have."""


CONDITIONS = {
    "fcntl": Condition(1, equals=_F_DUPFD_CLOEXEC),
    "mmap": Condition(2, lacks=_PROT_EXEC),
    "mprotect": Condition(2, lacks=_PROT_EXEC),
}
"""Calls that are not allowed with all arguments: a process can make no machine code of its own."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one kind of sealed process may do, beside using the files that are open already."""

    name: str
    calls: tuple[str, ...]
    """Names in `CALLS`; no profile has a call that opens a path."""


_COMPUTING = (
    *("read", "write", "close", "fstat", "lseek", "mmap", "mprotect", "munmap", "brk", "mremap"),
    *("madvise", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "nanosleep"),
    *("clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "times"),
    *("getrusage", "getrandom", "getpid", "gettid", "futex", "sched_yield", "restart_syscall"),
    *("exit", "exit_group"),
)
"""Memory, time, signals to itself, open files, its end."""

GRADER = Profile("grader", _COMPUTING)
"""The program of a Python grader: its files are two pipes."""
TEMPLATE = Profile("template", _COMPUTING)
"""A chat template and the tokenizer behind it: a pipe, the log, and the dataset's rows if asked."""
READER = Profile("reader", (*_COMPUTING, "pread64", "ftruncate", "fcntl"))
"""The reader of a file: it maps the file, and unpacks it to unnamed files that are open already."""
PROFILES = (GRADER, TEMPLATE, READER)

_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
"""The same on every architecture."""
_LANDLOCK_VERSION = 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights to files each version of Landlock knows; versions after 5 know as many as 5."""


class _Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


WALLS = ("landlock", "seccomp")


def seal(profile: Profile, wanted: Collection[str] = WALLS) -> tuple[list[str], str]:
    """Seal this process for good. Return the walls that stand, and why it is not sealed if so."""
    if sys.platform != "linux":
        return [], f"{platform.system()} has no seccomp"
    libc = ctypes.CDLL(None, use_errno=True)
    walls: list[str] = []
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return walls, f"no_new_privs is refused ({_last_error()})"
    if "landlock" in wanted and add_landlock(libc):
        walls.append("landlock")
    reason = add_seccomp(libc, profile) if "seccomp" in wanted else "it is not wanted"
    if not reason:
        walls.append("seccomp")
        reason = "" if _is_closed() else "the filter is installed but does not refuse"
    return walls, reason


def add_seccomp(libc: ctypes.CDLL, profile: Profile) -> str:
    """Refuse all system calls but those of a profile. Return why that is not possible, or ""."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return f"the system calls of {machine} are not known"
    program = seccomp_program(profile, machine)
    code = ctypes.create_string_buffer(b"".join(program))
    filter_ = _Filter(len(program), ctypes.addressof(code))
    if libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(filter_)):
        return f"seccomp is refused ({_last_error()})"
    return ""


def seccomp_program(profile: Profile, machine: str) -> list[bytes]:
    """Return the filter: kill calls of another architecture, allow those listed, refuse others.

    Calls of the x32 ABI have the architecture of x86_64 and numbers of their own: refused.
    """
    return [
        _instruction(_LOAD, _OFFSET_ARCHITECTURE),
        _instruction(_JUMP_IF_EQUAL, _ARCHITECTURES[machine], if_equal=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _OFFSET_NUMBER),
        *_allow_calls([name for name in profile.calls if machine in CALLS[name]], machine),
        _instruction(_RETURN, _REFUSE),
    ]


def _allow_calls(names: Collection[str], machine: str) -> Iterator[bytes]:
    """Yield instructions that allow calls, with the number of the call loaded before and after."""
    for name in names:
        number = CALLS[name][machine]
        if condition := CONDITIONS.get(name):
            yield _instruction(_JUMP_IF_EQUAL, number, if_not=4)
            yield _instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * condition.place)
            if condition.equals is None:
                yield _instruction(_JUMP_IF_SET, condition.lacks, if_equal=1)
            else:
                yield _instruction(_JUMP_IF_EQUAL, condition.equals, if_not=1)
            yield _instruction(_RETURN, _ALLOW)
            yield _instruction(_LOAD, _OFFSET_NUMBER)
        else:
            yield _instruction(_JUMP_IF_EQUAL, number, if_not=1)
            yield _instruction(_RETURN, _ALLOW)


def _instruction(code: int, value: int, *, if_equal: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_equal, if_not, value)


def add_landlock(libc: ctypes.CDLL) -> bool:
    """Forbid every path; from version 4 on TCP, from 6 on signals and abstract sockets, too."""
    version = libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        return False
    files = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    network = 0b11 if version >= 4 else 0  # noqa: PLR2004 -- a version of Landlock
    scopes = 0b11 if version >= 6 else 0  # noqa: PLR2004 -- a version of Landlock
    rights = [files, network, scopes][: 1 + bool(network) + bool(scopes)]
    attributes = struct.pack(f"{len(rights)}Q", *rights)
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        return bool(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _is_closed() -> bool:
    """Try what must be refused now."""
    try:
        os.stat("/")  # noqa: PTH116 -- nothing but the system call
    except PermissionError:
        return True
    return False


def _last_error() -> str:
    return os.strerror(ctypes.get_errno())
