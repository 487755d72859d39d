"""Run the program of a Python grader in a sealed process of its own, and stop it when it must."""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from studio.graders.grades import GradeError
from studio.processes.seal import WALLS

PythonPolicy = Literal["sealed", "trusted", "off"]
"""Whether Python graders run: only sealed, also where the kernel cannot seal, or not at all."""

MODULES = (
    *("abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "codecs"),
    *("collections", "colorsys", "configparser", "contextlib", "copy", "csv", "dataclasses"),
    *("decimal", "email", "enum", "fnmatch", "fractions", "graphlib", "hashlib", "heapq", "hmac"),
    *("html", "html.parser", "io", "ipaddress", "keyword", "numbers", "operator", "pprint"),
    *("shlex", "struct", "textwrap", "time", "tokenize", "tomllib", "types", "urllib.parse"),
    *("uuid", "xml.etree.ElementTree", "zlib"),
)
"""What a program can import if its source names it, beside what is always loaded."""

MAX_REPLY_BYTES = 2**16
_ROOT = Path(__file__).parents[2]
_START = (
    "import sys; sys.path.append(sys.argv[1]); from studio.graders import python_child; "
    "python_child.main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLimits:
    """What a program may use."""

    seconds: float = 2.0
    """For one answer."""
    start_seconds: float = 10.0
    """To start Python and load the program."""
    cpu_seconds: int = 3600
    """Over all answers, so that no process runs for ever."""
    memory_bytes: int = 512 * 2**20


class SealStatus(NamedTuple):
    """Whether this machine can seal a process."""

    walls: tuple[str, ...]
    """`seccomp`, which is the seal, and `landlock`, which stands behind it."""
    reason: str
    """Why a process is not sealed; empty if it is."""

    @property
    def text(self) -> str:
        return f"not sealed: {self.reason}" if self.reason else f"sealed ({', '.join(self.walls)})"


class _StoppedError(Exception):
    """A process cannot be asked any more."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class PythonProcess:
    """A program that grades answers, in one process until it has to be stopped.

    The process starts with the first answer. It is killed when it takes too long, ends, or writes
    what is no reply. An answer has no score if that happens in a fresh process. It ends when the
    thread that started it does, and is used by one thread at a time.
    """

    def __init__(
        self,
        source: str,
        policy: PythonPolicy,
        *,
        limits: PythonLimits | None = None,
        modules: Sequence[str] = MODULES,
        walls: Sequence[str] = WALLS,
    ) -> None:
        """Prepare a process. Only tests of the seal do without one of its walls."""
        self.source = source
        self.policy = policy
        self.limits = limits or PythonLimits()
        self.modules = modules
        self.walls = walls
        self.status: SealStatus | None = None
        """Of the last process."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_used = False
        """Whether the process has been asked before."""
        self._broken: GradeError | None = None
        self._received = bytearray()
        """What the process has written, and is not read yet."""
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def grade(self, sample: Mapping[str, Any], item: object) -> float:
        """Return the score that the program gives.

        Raises:
            GradeError: it gives none, or may not run.

        """
        self._count += 1
        try:
            request = _to_line({"id": self._count, "sample": sample, "item": item})
        except (RecursionError, ValueError) as error:
            raise GradeError("other_error", "The row cannot be written as JSON.") from error
        self.start()
        if self._is_used:
            # An earlier answer may have broken the process: this one is not to blame.
            with suppress(_StoppedError):
                return self._ask(request)
            self.close()
            self.start()
        try:
            return self._ask(request)
        except _StoppedError as error:
            self.close()
            raise GradeError("python_grader_server_error", error.message, kind=error.kind) from None

    def _ask(self, request: bytes) -> float:
        self._is_used = True
        return self._read_score(self._exchange(request, self.limits.seconds))

    def start(self) -> None:
        """Start the process unless it runs, and load the program.

        Raises:
            GradeError: the program cannot be loaded, or may not run.

        """
        if self._broken:
            raise self._broken
        if self._process and self._is_idle(self._process):
            return
        self.close()
        if self.policy == "off":
            raise GradeError(
                "python_grader_server_error",
                "Python graders are turned off in this studio (STUDIO_PYTHON_GRADERS).",
                kind="off",
            )
        try:
            self._load()
        except _StoppedError as error:
            self.close()
            raise GradeError("python_grader_server_error", error.message, kind=error.kind) from None

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        self._is_used = False
        self._received.clear()
        if process:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    with suppress(OSError):
                        pipe.close()
            process.wait()

    def _load(self) -> None:
        deadline = time.monotonic() + self.limits.start_seconds
        self._process = _spawn()
        reply = self._exchange(self._first_line(), self.limits.start_seconds)
        walls, reason = reply.get("walls"), reply.get("reason")
        if not isinstance(walls, list) or not isinstance(reason, str):
            raise _StoppedError("start", "The process of the grader could not be started.")
        self.status = SealStatus(tuple(map(str, walls)), reason)
        if reason and self.policy == "sealed":
            raise _StoppedError(
                "unsealed",
                f"This machine cannot run Python graders safely: {reason}. On a machine that you "
                "alone use, STUDIO_PYTHON_GRADERS=trusted runs them unsealed.",
            )
        loaded = self._exchange(b"", deadline - time.monotonic())
        if not loaded.get("ready"):
            details = _details(loaded)
            self.close()
            self._broken = GradeError("python_grader_runtime_error", details)
            raise self._broken

    def _first_line(self) -> bytes:
        return _to_line(
            {
                "source": self.source,
                "modules": list(self.modules),
                "walls": list(self.walls),
                "must_seal": self.policy == "sealed",
                "memory_bytes": self.limits.memory_bytes,
                "cpu_seconds": self.limits.cpu_seconds,
                "parent": os.getpid(),
            }
        )

    def _is_idle(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a process waits to be asked: it lives, and has written nothing meanwhile."""
        assert process.stdout  # noqa: S101 -- opened by `_spawn`
        return not (
            self._received or process.poll() is not None or _wait(process.stdout.fileno(), None, 0)
        )

    def _read_score(self, reply: Mapping[str, Any]) -> float:
        if reply.get("id") != self._count:
            raise _StoppedError("protocol", "The program wrote what is no reply, and was stopped.")
        if "error" in reply:
            raise GradeError("python_grader_runtime_error", _details(reply))
        score = reply.get("reward")
        if not isinstance(score, float) or not math.isfinite(score):
            raise _StoppedError("protocol", "The program wrote what is no reply, and was stopped.")
        return score

    def _exchange(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send a line, and return the object that the next line holds.

        Reads and writes at the same time, as a program may do neither.

        Raises:
            _StoppedError: the process takes too long, has ended, or writes something else.

        """
        process = self._process
        assert process  # noqa: S101 -- started by the caller
        assert process.stdin  # noqa: S101 -- opened by `_spawn`
        assert process.stdout  # noqa: S101 -- opened by `_spawn`
        reading, writing = process.stdout.fileno(), process.stdin.fileno()
        received, deadline = self._received, time.monotonic() + seconds
        while b"\n" not in received:
            left = deadline - time.monotonic()
            ready = _wait(reading, writing if request else None, left) if left > 0 else set()
            if not ready:
                raise _StoppedError("timeout", f"It took more than {seconds:.3g} seconds.")
            if writing in ready:
                request = request[_write(writing, request) :]
            if reading in ready:
                received += _read(reading)
            if len(received) > MAX_REPLY_BYTES:
                raise _StoppedError("protocol", "The program wrote too much, and was stopped.")
        line, _, rest = bytes(received).partition(b"\n")
        received[:] = rest
        return _parse_reply(line)


def _wait(reading: int, writing: int | None, seconds: float) -> set[int]:
    """Return which pipes can be used now, or are broken; none if that takes too long."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    if writing is not None:
        poll.register(writing, select.POLLOUT)
    return {pipe for pipe, _ in poll.poll(1000 * seconds)}


def _write(pipe: int, data: bytes) -> int:
    try:
        return os.write(pipe, data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise _StoppedError("ended", _ENDED) from error


def _read(pipe: int) -> bytes:
    received = os.read(pipe, MAX_REPLY_BYTES)
    if not received:
        raise _StoppedError("ended", _ENDED)
    return received


_ENDED = "The program ended its process, or used more memory or time than allowed."


def _spawn() -> subprocess.Popen[bytes]:
    """Start Python with nothing of this process: no environment, no files, no terminal.

    A fresh process, not a fork: it may be started beside CUDA and threads.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 -- a list of words
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise _StoppedError("start", f"No process could be started: {reason}.") from error
    for pipe in (process.stdin, process.stdout):
        assert pipe  # noqa: S101 -- asked for above
        os.set_blocking(pipe.fileno(), False)
    return process


def _to_line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _parse_reply(line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise _StoppedError("protocol", "The program wrote what is no reply, and was stopped.")
    return reply


def _details(reply: Mapping[str, Any]) -> str:
    """Return an error as the program describes it: any text, so cut, and valid in UTF-8."""
    text = str(reply.get("error") or "The program could not be loaded.")
    return text[:400].encode(errors="replace").decode()


@cache
def seal_status() -> SealStatus:
    """Return whether this machine can seal a process: tried once, by sealing one."""
    with PythonProcess("def grade(sample, item): return 0", "trusted") as process:
        try:
            process.start()
        except GradeError as error:
            return SealStatus((), error.message)
        return process.status or SealStatus((), "no process could be started")
