"""Render with a chat template in a sealed process of its own, and stop it when it must.

A template that a model brings along is a stranger's program: in this process it would have the
datasets, the weights and the network. Only text and the spans of answers come back from its own.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from studio.processes.seal import WALLS
from studio.training.data import template_child

Span = tuple[int, int]
Rendered = tuple[list[str], list[list[Span]]]
"""The texts of conversations, and for each the spans that the template marks as answers."""

MAX_REPLY_BYTES = 2**28
_ROOT = Path(__file__).parents[3]
_START = (
    "import sys; sys.path += sys.argv[3:]; from importlib import import_module; "
    "import_module(sys.argv[1]).main(int(sys.argv[2]))"
)
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""One thread, which the seal binds; nothing of this process's environment but the time zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """What a template may use."""

    seconds: float = 30.0
    """For one conversation, by the clock: the machine may be busy."""
    start_seconds: float = 120.0
    """To start Python and import the renderer."""
    cpu_seconds: int = 600
    """Of one process; another takes over then."""
    memory_bytes: int = 2**30
    """Beyond what it has when it is sealed."""
    stops: int = 3
    """After so many conversations that ended their process, all others are refused."""


class TemplateFailure(Exception):  # noqa: N818 -- jinja2 has a TemplateError
    """A template fails, or was stopped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _StoppedError(TemplateFailure):
    """A process cannot be asked any more."""


class _EndedError(_StoppedError):
    """It ended, or wrote what is no reply: an earlier conversation may be to blame."""


class SealStatus(NamedTuple):
    """The walls that stand around a process, and why it is not sealed, if so."""

    walls: tuple[str, ...]
    reason: str


class _Reply(NamedTuple):
    text: str
    spans: list[Span]
    error: str | None


class _Child:
    """A process that renders. A fork of the process that started it leaves it alone."""

    def __init__(self, module: str) -> None:
        self.owner = os.getpid()
        self._process = _spawn(module, self.owner)
        assert self._process.stdin  # noqa: S101 -- opened by `_spawn`
        assert self._process.stdout  # noqa: S101 -- opened by `_spawn`
        self._writing = self._process.stdin.fileno()
        self._reading = self._process.stdout.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def end(self) -> None:
        if self.owner == os.getpid():
            self._process.kill()
        else:
            self._process.returncode = 0
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()

    def exchange(self, lines: bytes, limits: Iterable[float]) -> Iterator[bytes]:
        """Send lines, and yield one line for each of the limits, which are in seconds.

        Reads and writes at the same time, as a template may do neither.

        Raises:
            _StoppedError: the process takes too long, has ended, or writes too much.

        """
        unsent, received, scanned = memoryview(lines), bytearray(), 0
        for seconds in limits:
            deadline = time.monotonic() + seconds
            while (end := received.find(b"\n", scanned)) < 0:
                scanned = len(received)
                if scanned > MAX_REPLY_BYTES:
                    raise _StoppedError("it wrote too much and was stopped")
                ready = self._wait(deadline, is_sending=bool(unsent))
                if not ready:
                    raise _StoppedError(f"it took more than {seconds:.3g} seconds and was stopped")
                if self._reading in ready:
                    received += self._read()
                if self._writing in ready:
                    unsent = self._write(unsent)
            line, scanned = bytes(received[:end]), 0
            del received[: end + 1]
            yield line

    def _wait(self, deadline: float, *, is_sending: bool) -> set[int]:
        """Return which pipes can be used now, or are broken; none if that takes too long."""
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        if is_sending:
            poll.register(self._writing, select.POLLOUT)
        left = max(0.0, deadline - time.monotonic())
        return {pipe for pipe, _ in poll.poll(1000 * left)}

    def _write(self, unsent: memoryview) -> memoryview:
        """Return what is still unsent: nothing if the process has ended, whose replies may wait."""
        try:
            return unsent[os.write(self._writing, unsent) :]
        except BlockingIOError:
            return unsent
        except OSError:
            return unsent[:0]

    def _read(self) -> bytes:
        received = os.read(self._reading, 2**20)
        if not received:
            raise _EndedError("it ended its process, or used more memory or time than allowed")
        return received


def _spawn(module: str, owner: int) -> subprocess.Popen[bytes]:
    """Start Python with nothing of this process but where its packages are.

    A fresh process, not a fork: it may be started beside CUDA and threads.
    """
    zone = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
    paths = [str(_ROOT), *filter(os.path.isabs, sys.path)]
    words = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, module, str(owner), *paths]
    try:
        process = subprocess.Popen(  # noqa: S603 -- a list of words
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT | zone,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise _StoppedError(f"no process could be started for it ({reason})") from error
    for pipe in (process.stdin, process.stdout):
        assert pipe  # noqa: S101 -- asked for above
        os.set_blocking(pipe.fileno(), False)
    return process


_spares: list[_Child] = []
"""Processes that were started early, for any template."""
_MAX_PROCESSES = 4
_used: list[weakref.ref["TemplateProcess"]] = []
"""Whose processes live, the least recently used first."""
_used_lock = threading.Lock()
_renders_here = False
_RENDERER = "transformers.utils.chat_template_utils"
"""Imported only where it is used: the process of a template has its own."""


def start_early() -> None:
    """Start the process of the next template, while this process loads something else."""
    if not _spares and not _renders_here:
        with suppress(_StoppedError):
            _spares.append(_Child(template_child.__name__))


def render_in_this_process() -> None:
    """Let this process render: it runs templates in children that seal themselves."""
    global _renders_here  # noqa: PLW0603 -- a property of the process
    import_module(_RENDERER)
    _renders_here = True


def _take_child(module: str) -> _Child:
    while _spares and module == template_child.__name__:
        child = _spares.pop()
        if child.is_usable:
            return child
        child.end()
    return _Child(module)


def _end_unused(used: "TemplateProcess") -> None:
    """End the least recently used processes beyond `_MAX_PROCESSES`; they start again when asked.

    Each takes 25 MB, and a template lives as long as the model or dataset that has it.
    """
    with _used_lock:
        known = (ref() for ref in _used)
        others = [one for one in known if one and one.child and one is not used]
        _used[:] = map(weakref.ref, [*others, used])
        for one in others[: max(0, len(_used) - _MAX_PROCESSES)]:
            one.close_unless_asked()


class TemplateProcess:
    """A chat template, in a process of its own that starts with the first conversation.

    The process is killed when it takes too long, ends, or writes what is no reply. A conversation
    fails if that happens in a fresh process. It also ends with the thread that started it, with
    this object, and when several others have been used since.
    """

    def __init__(
        self,
        template: str,
        tokens: Mapping[str, Any],
        *,
        limits: TemplateLimits | None = None,
        walls: Collection[str] = WALLS,
        module: str = template_child.__name__,
    ) -> None:
        """Prepare a process. Only tests choose its walls and module."""
        self.template = template
        self.tokens = tokens
        self.limits = limits or TemplateLimits()
        self.walls = walls
        self.module = module
        self.status: SealStatus | None = None
        """Of the last process."""
        self.child: _Child | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._lock = threading.Lock()
        self._sent = self._answered = self._stops = 0
        """Conversations: sent at all, answered by this process, and those that ended theirs."""

    def render(
        self,
        conversations: Sequence[Sequence[Mapping[str, Any]]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: bool,
    ) -> Rendered:
        """Render conversations.

        Raises:
            TemplateFailure: the template fails, or was stopped.

        """
        if _renders_here:
            return self._render_here(conversations, tools, **options)
        requests = [{"messages": one, "tools": tools, "options": options} for one in conversations]
        with self._lock:
            replies = self._ask_all(requests)
        for reply in replies:
            if reply.error is not None:
                raise TemplateFailure(reply.error)
        has_marks = options.get("return_assistant_tokens_mask")
        return [one.text for one in replies], [one.spans for one in replies] if has_marks else []

    def close(self) -> None:
        """End the process, if there is one."""
        finalizer, self._finalizer, self.child = self._finalizer, None, None
        if finalizer:
            finalizer()

    def close_unless_asked(self) -> None:
        """End the process if no thread waits for what it renders."""
        if self._lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._lock.release()

    def _render_here(
        self,
        conversations: Sequence[Sequence[Mapping[str, Any]]],
        tools: Sequence[Mapping[str, Any]] | None,
        **options: bool,
    ) -> Rendered:
        renderer = import_module(_RENDERER)
        try:
            texts, marks = renderer.render_jinja_template(
                conversations=conversations,
                tools=tools,
                chat_template=self.template,
                **options,
                **self.tokens,
            )
        except template_child.ERRORS as error:
            raise TemplateFailure(template_child.describe(error)) from error
        return texts, marks

    def _ask_all(self, requests: Sequence[Mapping[str, Any]]) -> list[_Reply]:
        """Return the replies; if the process must be stopped, ask the rest of another."""
        lines = [_to_line({"id": i, **one}) for i, one in enumerate(requests, self._sent)]
        first, self._sent = self._sent, self._sent + len(lines)
        replies: list[_Reply] = []
        while len(replies) < len(lines):
            if self._stops >= self.limits.stops:
                raise TemplateFailure("it had to be stopped several times")
            try:
                for reply in self._ask(lines[len(replies) :], first + len(replies)):
                    replies.append(reply)  # noqa: PERF402 -- those before an error count
            except _StoppedError as error:
                if not isinstance(error, _EndedError) or not self._answered:
                    self._stops += 1
                    replies.append(_Reply("", [], error.reason))
        return replies

    def _ask(self, lines: Sequence[bytes], first: int) -> Iterator[_Reply]:
        """Yield replies until all are there or the process cannot be asked any more."""
        try:
            child = self._start()
            limits = repeat(self.limits.seconds, len(lines))
            for number, line in enumerate(child.exchange(b"".join(lines), limits), first):
                yield _read_reply(line, number)
                self._answered += 1
        except BaseException:  # An exception of a signal, too: it still has replies to write.
            self.close()
            raise

    def _start(self) -> _Child:
        """Return a process that is sealed and waits to be asked."""
        _end_unused(self)
        if self.child and self.child.is_usable:
            return self.child
        self.close()
        self._answered = 0
        child = self.child = _take_child(self.module)
        self._finalizer = weakref.finalize(self, child.end)
        start = {
            "template": self.template,
            "tokens": self.tokens,
            "walls": list(self.walls),
            "memory_bytes": self.limits.memory_bytes,
            "cpu_seconds": self.limits.cpu_seconds,
        }
        for line in child.exchange(_to_line(start), [self.limits.start_seconds]):
            told = _parse(line)
            self.status = SealStatus(tuple(told["walls"]), told["reason"])
        return child


def _to_line(value: object) -> bytes:
    """Return a value as a line of JSON; what is no JSON becomes a mark, as templates get it."""
    try:
        return json.dumps(value, default=lambda one: f"<{type(one).__name__}>").encode() + b"\n"
    except (RecursionError, TypeError, ValueError) as error:
        raise TemplateFailure(template_child.describe(error)) from error


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _EndedError(_NO_REPLY)
    return value


_NO_REPLY = "it wrote what is no text and was stopped"


def _read_reply(line: bytes, number: int) -> _Reply:
    """Read a reply, which a template that broke out of Jinja's sandbox may have written."""
    value = _parse(line)
    text, spans, error = value.get("text", ""), value.get("spans", []), value.get("error")
    if (
        value.get("id") != number
        or not isinstance(text, str)
        or not isinstance(error, str | None)
        or not isinstance(spans, list)
        or not all(map(_is_span, spans))
    ):
        raise _EndedError(_NO_REPLY)
    return _Reply(text, [(start, end) for start, end in spans], error)


def _is_span(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2  # noqa: PLR2004 -- where it begins and ends
        and all(type(one) is int and one >= 0 for one in value)
    )
