"""Limit what untrusted code and files may use; run code in children, read through a pipe."""

import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from studio.errors import TooLargeError
from studio.intake.files.limits import MAX_CHILD_MEMORY, MAX_CHILD_SECONDS, Limits
from studio.processes import parent_death
from studio.processes.unix_sockets import is_hung_up
from studio.protocols.tokenizer_service import ServiceFailure, TokenizerRequest

MAX_CHILDREN = 4
"""How many may run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Resources a piece of work may use from now on."""

    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int

    def apply(self) -> None:
        """Limit this process; what it has used so far does not count."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime) + self.cpu_seconds
        _lower_limit(resource.RLIMIT_CPU, spent)
        signal.setitimer(signal.ITIMER_REAL, self.wall_seconds)
        _lower_limit(resource.RLIMIT_FSIZE, 2**20)
        _lower_limit(resource.RLIMIT_CORE, 0)
        limit_memory(self.memory_bytes)


PREVIEW_LIMITS = ResourceLimits(cpu_seconds=2, wall_seconds=5, memory_bytes=512 * 2**20)
"""Rendering a row with its template, and tokenising it."""

PACKED_PREVIEW_LIMITS = ResourceLimits(cpu_seconds=6, wall_seconds=10, memory_bytes=2**30)
"""The same for all rows that may share an example; half of it is enough for most."""

LOAD_LIMITS = ResourceLimits(cpu_seconds=10, wall_seconds=14, memory_bytes=3 * 2**30)
"""Loading the largest tokenizers; rendering the row then gets `PREVIEW_LIMITS`."""

_HINT = "Choose another chat template, or another model."
TIMEOUT_FAILURE = ServiceFailure(
    code="chat_template_refused",
    message=f"This took more than {PREVIEW_LIMITS.cpu_seconds} seconds and was stopped: the "
    "model's chat template does not terminate, or the row is very long.",
    hint=_HINT,
)
CRASH_FAILURE = ServiceFailure(
    code="chat_template_refused",
    message="Previewing this row needs more memory than allowed, or crashes the tokenizer.",
    hint=_HINT,
)
_TIMEOUT_SIGNALS = {signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL}


@dataclass(slots=True)
class SandboxedChild:
    pid: int
    pipe: int
    """Where its answer is read from; it closes when the child ends."""
    deadline: float
    """When it must be done."""
    connection: socket.socket
    """The client that waits for the answer."""
    request: TokenizerRequest | None = None
    """The request it answers."""
    output: bytearray = field(default_factory=bytearray)
    was_killed: bool = False

    @property
    def is_abandoned(self) -> bool:
        """Whether the client has disconnected."""
        return is_hung_up(self.connection)

    def kill(self) -> None:
        self.was_killed = True
        os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> ServiceFailure | None:
        """Reap the child. Return the failure to send instead of an answer, if any."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not self.was_killed:
            return None
        return TIMEOUT_FAILURE if self.was_killed or -code in _TIMEOUT_SIGNALS else CRASH_FAILURE


def fork_child(
    work: Callable[[], Iterator[bytes]], limits: ResourceLimits, connection: socket.socket
) -> SandboxedChild:
    """Run a piece of work in a child process that writes what it yields to a pipe."""
    read_end, write_end = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid:
        os.close(write_end)
        return SandboxedChild(pid, read_end, time.monotonic() + limits.wall_seconds, connection)
    code = 1
    try:
        parent_death.kill_on_parent_death(lambda: os.getppid() != parent)
        _close_other_files(write_end)
        limits.apply()
        with os.fdopen(write_end, "wb") as pipe:
            for part in work():
                pipe.write(part)
                pipe.flush()
        code = 0
    finally:  # Whatever happens, a child must never continue as its parent.
        try:
            if code:
                traceback.print_exc()
        finally:
            os._exit(code)


def limit_memory(extra_bytes: int) -> None:
    """Limit how many bytes this process may add to its current address space."""
    if sys.platform == "linux":
        _lower_limit(resource.RLIMIT_AS, _address_space_bytes() + extra_bytes)


def _close_other_files(pipe: int) -> None:
    """Close what a child does not need: every file but the log, for its errors, and the pipe."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.closerange(3, pipe)
    os.closerange(pipe + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**16))


def _lower_limit(resource_id: int, limit: int) -> None:
    """Set a soft limit; a lower hard limit already applies."""
    hard = resource.getrlimit(resource_id)[1]
    with suppress(ValueError):
        resource.setrlimit(resource_id, (limit, hard))


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


@contextmanager
def limit_reading(limits: Limits, file_bytes: int) -> Iterator[Limits]:
    """Limit the memory of this process, and yield limits that bound the time, too.

    The file's own size is added: Arrow files are memory-mapped, not loaded.

    Raises:
        TooLargeError: reading needed more memory.

    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(MAX_CHILD_MEMORY + file_bytes)
    try:
        yield limits.within(MAX_CHILD_SECONDS)
    except MemoryError as error:
        raise TooLargeError(
            f"Reading the file takes more than {MAX_CHILD_MEMORY / 1e9:.2g} GB of memory.",
            hint="Split the file, or remove rows.",
            param="file",
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
