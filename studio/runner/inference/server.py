"""The server of the inference service: receives requests and streams answers."""

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import StudioError
from studio.processes.unix_sockets import is_hung_up, receive_all
from studio.protocols.inference_service import (
    MAX_REQUEST_BYTES,
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    InferenceStatus,
)
from studio.protocols.tokenizer_service import ServiceFailure
from studio.runner.inference.generation import generate, token_budget
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.prompt_scores import send_prompt_scores
from studio.runner.inference.reading import read
from studio.training import exception_mapping
from studio.training.evaluation.sample_answers import record_compute_formats

REQUEST_SECONDS = 5.0
"""How long a request may take to arrive. Clients are the studio's own processes on this machine."""

_LOG_HINT = "Try again. For details, see speaker.log in the studio's folder."
_HINTS = {"out_of_memory": "Choose a smaller model, or shorten the prompt."}
"""Hints for failures of inference; those for training do not apply."""


@dataclass(slots=True)
class InferenceServer:
    listener: socket.socket
    lifeline: int
    """Closes when the service must exit; it also carries status reports to the worker."""
    idle_seconds: float
    models: ModelCache = field(default_factory=ModelCache)

    def serve(self) -> None:
        """Answer requests until the worker closes the lifeline or the service is idle."""
        os.set_blocking(self.lifeline, False)
        while True:
            files = [self.lifeline, self.listener.fileno()]
            ready, _, _ = select.select(files, [], [], self.idle_seconds)
            if not ready or self.lifeline in ready:
                return
            connection, _ = self.listener.accept()
            with connection:
                self._receive(connection)

    def _receive(self, connection: socket.socket) -> None:
        connection.settimeout(REQUEST_SECONDS)
        try:
            request = GenerationRequest.model_validate_json(
                receive_all(connection, MAX_REQUEST_BYTES)
            )
        except (OSError, ValidationError):
            return  # Not one of our clients.
        connection.settimeout(None)
        if is_hung_up(connection):
            return  # The client gave up waiting.
        self._report_status(InferenceStatus(name=request.name, is_answering=True))
        computed_in = self._answer(connection, request)
        self._report_status(
            InferenceStatus(name=request.name, is_answering=False, computed_in=computed_in)
        )

    def _answer(self, connection: socket.socket, request: GenerationRequest) -> str:
        """Answer a request. Return the format it was computed in, or "" if it failed."""
        send, computed_in = _make_sender(connection), ""
        if not self.models.is_loaded(request):
            send(GenerationChunk(loading=True))
        try:
            with self.models.model_for(request) as (model, tokenizer):
                if not request.ids:
                    send(GenerationChunk(end=GenerationEnd(reason="stop", tokens=0)))
                    return computed_in
                end = _respond(request, model, tokenizer, send, lambda: is_hung_up(connection))
            computed_in = end.computed_in
            send(GenerationChunk(end=end))
        except Exception as error:  # one failed answer must not prevent the next
            send(GenerationChunk(failure=_to_failure(error)))
            if not isinstance(error, StudioError):
                # An unexpected error may leave bad state behind: let a new process start.
                raise
        return computed_in

    def _report_status(self, status: InferenceStatus) -> None:
        with suppress(OSError):  # The worker may be gone or busy; it can do without this.
            os.write(self.lifeline, status.to_line())


def _respond(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[GenerationChunk], None],
    is_gone: Callable[[], bool],
) -> GenerationEnd:
    """Read the prompt and give scores, or write an answer."""
    if request.gives_scores:
        # It needs no room for an answer, and was truncated as in training.
        send(GenerationChunk(started=True))
        return read(request, model)
    budget = token_budget(request, model.config.get_text_config())
    send(GenerationChunk(started=True))
    formats: set[str] = set()
    if request.scored_from is not None:
        with record_compute_formats(model) as formats:
            send_prompt_scores(request, model, tokenizer, send)
    if budget == 0:
        return GenerationEnd(reason="length", tokens=0, computed_in=" and ".join(sorted(formats)))
    return generate(
        request.model_copy(update={"most": budget}),
        model,
        tokenizer,
        send,
        is_gone,
    )


def _make_sender(connection: socket.socket) -> Callable[[GenerationChunk], None]:
    def send(chunk: GenerationChunk) -> None:
        with suppress(OSError):  # The client is gone; this is detected before the next token.
            connection.sendall(chunk.to_line())

    return send


def _to_failure(error: Exception) -> ServiceFailure:
    failure = exception_mapping.explain(error)
    if isinstance(error, StudioError):
        return ServiceFailure(code=failure.code, message=failure.message, hint=failure.hint)
    return ServiceFailure(
        code=failure.code, message=failure.message, hint=_HINTS.get(failure.code, _LOG_HINT)
    )
