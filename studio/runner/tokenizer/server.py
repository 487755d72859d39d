"""The server of the tokenizer service: passes requests to children and returns their answers."""

import os
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from studio.errors import StudioError, TooLargeError
from studio.processes.seal import TEMPLATE, WALLS, seal
from studio.processes.unix_sockets import is_hung_up, receive_all
from studio.protocols.tokenizer_service import (
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    RequestKind,
    RowLengths,
    ServiceFailure,
    TokenizerRequest,
    TokenizerResponse,
)
from studio.runner.sandbox import (
    LOAD_LIMITS,
    MAX_CHILDREN,
    PACKED_PREVIEW_LIMITS,
    PREVIEW_LIMITS,
    SandboxedChild,
    fork_child,
)
from studio.runner.tokenizer.cache import TokenizerCache, load_tokenizer
from studio.training.data import packing, text_pairs, token_preview
from studio.training.data.packing import MeasuredRows
from studio.training.models import tokenizers

IDLE_SECONDS = 600.0
_LOADED_MARKER = b"\n"
"""Written by a child as soon as it has loaded a tokenizer. Row lengths it had to measure follow on
their own line, and its answer comes last."""

POLL_SECONDS = 0.5
"""How often to check whether clients still wait for their child."""

REQUEST_SECONDS = 1.0
"""How long a request may take to arrive. Clients are the studio's own processes on this machine."""


@dataclass(slots=True)
class TokenizerServer:
    listener: socket.socket
    lifeline: int
    cache: TokenizerCache = field(default_factory=TokenizerCache)
    children: dict[int, SandboxedChild] = field(default_factory=dict)
    """By the file descriptor their answers are read from."""
    idle_seconds: float = IDLE_SECONDS
    walls: Collection[str] = WALLS
    """What each child seals itself with. Only tests of the seal do without."""
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self) -> None:
        """Answer requests until the worker is gone or the service is idle."""
        self._selector.register(self.lifeline, selectors.EVENT_READ)
        self._selector.register(self.listener, selectors.EVENT_READ)
        last_request_at = time.monotonic()
        while self.children or time.monotonic() - last_request_at < self.idle_seconds:
            for key, _ in self._selector.select(self._poll_timeout(last_request_at)):
                if key.fd == self.lifeline:
                    return
                if key.fileobj is self.listener:
                    last_request_at = time.monotonic()
                    self._receive()
                else:
                    self._read_child(self.children[key.fd])
            self._kill_overdue()

    def _poll_timeout(self, last_request_at: float) -> float:
        if self.children:
            return POLL_SECONDS
        return max(0.0, last_request_at + self.idle_seconds - time.monotonic())

    def _receive(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(REQUEST_SECONDS)
        try:
            request = TokenizerRequest.model_validate_json(
                receive_all(connection, MAX_REQUEST_BYTES)
            )
        except (OSError, ValidationError):
            connection.close()  # Not one of our clients.
            return
        if is_hung_up(connection):
            connection.close()  # The client gave up waiting.
            return
        tokenizer = self.cache.get(request.model)
        if tokenizer is not None:
            sizes = self.cache.sizes(request)
            limits = PACKED_PREVIEW_LIMITS if request.window and sizes is None else PREVIEW_LIMITS
            child = fork_child(
                lambda: _answer(request, tokenizer, sizes, self.walls), limits, connection
            )
        else:
            # Children also load untrusted tokenizers first; once one succeeded, the server may load
            # it.
            child = fork_child(
                lambda: _load_and_answer(request, self.walls), LOAD_LIMITS, connection
            )
        child.request = request
        self._watch(child)

    def _watch(self, child: SandboxedChild) -> None:
        self.children[child.pipe] = child
        self._selector.register(child.pipe, selectors.EVENT_READ)
        if len(self.children) == MAX_CHILDREN:
            # Further clients wait in the socket's backlog.
            self._selector.unregister(self.listener)

    def _read_child(self, child: SandboxedChild) -> None:
        part = os.read(child.pipe, 2**16)
        child.output += part
        if len(child.output) > MAX_RESPONSE_BYTES:
            child.kill()
        if not part or child.was_killed:
            self._finish_child(child)

    def _kill_overdue(self) -> None:
        for child in list(self.children.values()):
            if time.monotonic() > child.deadline or child.is_abandoned:
                child.kill()
                self._finish_child(child)

    def _finish_child(self, child: SandboxedChild) -> None:
        if len(self.children) == MAX_CHILDREN:
            self._selector.register(self.listener, selectors.EVENT_READ)
        del self.children[child.pipe]
        self._selector.unregister(child.pipe)
        failure = child.reap()
        *notes, answer = bytes(child.output).split(b"\n")
        _send(
            child.connection,
            TokenizerResponse(failure=failure).model_dump_json().encode() if failure else answer,
        )
        self._cache_results(child.request, notes)

    def _cache_results(self, request: TokenizerRequest | None, notes: Sequence[bytes]) -> None:
        """Cache what a child has loaded and measured for later requests."""
        if request is None or (self.cache.get(request.model) is None and notes[:1] != [b""]):
            return
        if self.cache.get(request.model) is None:
            self.cache.add(request.model)
        for note in filter(None, notes):
            with suppress(ValidationError):
                self.cache.store_sizes(request, RowLengths.model_validate_json(note))


def _load_and_answer(request: TokenizerRequest, walls: Collection[str]) -> Iterator[bytes]:
    try:
        tokenizer = load_tokenizer(request.model)
    except StudioError as error:
        yield _failure_answer(error)
        return
    yield _LOADED_MARKER
    (PACKED_PREVIEW_LIMITS if request.window else PREVIEW_LIMITS).apply()
    yield from _answer(request, tokenizer, None, walls)


def _answer(
    request: TokenizerRequest,
    tokenizer: PreTrainedTokenizerBase,
    sizes: RowLengths | None,
    walls: Collection[str],
) -> Iterator[bytes]:
    """Answer in a child: changes to its state do not affect the server.

    From here on, the model's template runs: the child has loaded and opened what it needs, and
    seals itself. Where the kernel cannot, its limits and Jinja's sandbox remain.
    """
    rows = packing.open_rows(request)
    if request.base:
        base = Path(request.base)
        tokenizers.set_base(tokenizer, Path(request.model), base, request.max_pixels)
    seal(TEMPLATE, walls)
    try:
        if rows and sizes is None:
            sizes = packing.measure_rows(request, tokenizer, rows)
            yield sizes.model_dump_json().encode() + b"\n"
        measured = MeasuredRows(rows, sizes) if rows and sizes else None
        answer = _HANDLERS[request.kind](request, tokenizer, measured)
    except StudioError as error:
        yield _failure_answer(error)
        return
    payload = answer.model_dump_json().encode()
    if len(payload) > MAX_RESPONSE_BYTES:
        payload = _failure_answer(TooLargeError("This row is too long to preview."))
    yield payload


_HANDLERS: dict[
    RequestKind,
    Callable[[TokenizerRequest, PreTrainedTokenizerBase, MeasuredRows | None], TokenizerResponse],
] = {
    "tokens": lambda request, it, rows: TokenizerResponse(
        tokens=token_preview.preview_tokens(request, it, rows)
    ),
    "templates": lambda request, it, _rows: TokenizerResponse(
        templates=token_preview.preview_templates(request, it)
    ),
    "prompt": lambda request, it, _rows: TokenizerResponse(
        prompt=token_preview.tokenise_prompt(request, it)
    ),
    "answer": lambda request, it, _rows: TokenizerResponse(
        prompt=token_preview.tokenise_answer(request, it)
    ),
    "reading": lambda request, it, _rows: TokenizerResponse(
        prompt=token_preview.tokenise_row(request, it)
    ),
    "steps": lambda request, it, _rows: TokenizerResponse(
        prompt=token_preview.tokenise_solution(request, it)
    ),
    "words": lambda request, it, _rows: TokenizerResponse(
        prompt=token_preview.tokenise_tagged(request, it)
    ),
    "texts": lambda request, it, _rows: TokenizerResponse(
        prompt=text_pairs.tokenise_texts(request, it)
    ),
}


def _failure_answer(error: StudioError) -> bytes:
    failure = ServiceFailure(code=error.code, message=error.message, hint=error.hint)
    return TokenizerResponse(failure=failure).model_dump_json().encode()


def _send(connection: socket.socket, payload: bytes) -> None:
    with connection, suppress(OSError):  # The client has gone.
        connection.sendall(payload)
