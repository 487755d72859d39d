"""The server of the inference service: receives requests and streams answers.

Requests that wait for the same model are answered together.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import StudioError
from studio.protocols.inference_service import (
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    InferenceStatus,
)
from studio.protocols.tokenizer_service import ServiceFailure
from studio.runner.inference.answer import Answer, start_answer
from studio.runner.inference.clients import Client, Inbox, is_readable
from studio.runner.inference.decoding import decode, fits
from studio.runner.inference.generation import search, token_budget
from studio.runner.inference.model_cache import ModelCache, loaded_key
from studio.runner.inference.prompt_scores import send_prompt_scores
from studio.runner.inference.reading import read
from studio.training import exception_mapping
from studio.training.evaluation.sample_answers import record_compute_formats

_LOG_HINT = "Try again. For details, see speaker.log in the studio's folder."
_HINTS = {"out_of_memory": "Choose a smaller model, or shorten the prompt."}
"""Hints for failures of inference; those for training do not apply."""

_UNLOADED = ServiceFailure(
    code="no_free_slot",
    message="The model was unloaded before it could answer.",
    hint="Try again.",
)


@dataclass(slots=True)
class InferenceServer:
    listener: socket.socket
    lifeline: int
    """Closes when the service must exit; it also carries status reports to the worker."""
    idle_seconds: float
    models: ModelCache = field(default_factory=ModelCache)
    inbox: Inbox = field(init=False)
    latest: Client = field(init=False)
    """The client whose answer began last."""

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.listener)

    def serve(self) -> None:
        """Answer requests until the worker closes the lifeline or the service is idle."""
        os.set_blocking(self.lifeline, False)
        try:
            while client := self.inbox.wait(self.lifeline, self.idle_seconds):
                self._answer(client)
        finally:
            self.inbox.refuse(_UNLOADED)

    def _answer(self, client: Client) -> None:
        """Answer a client, and those that ask for the same model meanwhile."""
        request = _request_of(client)
        self.report_answering(client)
        clients = [client]
        if not self.models.is_loaded(request):
            client.send(GenerationChunk(loading=True))
        try:
            key = loaded_key(request)
            with self.models.model_for(request) as (model, tokenizer):
                room = _Room(self, model, tokenizer, key, clients)
                if answer := room.start(client):
                    decode([answer], model, tokenizer, room)
        except Exception as error:  # one failed answer must not prevent the next
            for each in clients:
                each.fail(_to_failure(error))
            if not isinstance(error, StudioError):
                # An unexpected error may leave bad state behind: let a new process start.
                raise
        finally:
            for each in clients:
                self.inbox.leave(each)
        status = InferenceStatus(
            name=_request_of(self.latest).name,
            is_answering=False,
            computed_in=self.latest.computed_in,
        )
        self._report_status(status)

    def report_answering(self, client: Client) -> None:
        """Report the name by which a client asks: one model may have several."""
        self.latest = client
        self._report_status(InferenceStatus(name=_request_of(client).name, is_answering=True))

    def _report_status(self, status: InferenceStatus) -> None:
        with suppress(OSError):  # The worker may be gone or busy; it can do without this.
            os.write(self.lifeline, status.to_line())


@dataclass(slots=True)
class _Room:
    """The clients that one loaded model answers, and those of the waiting that may join them."""

    server: InferenceServer
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    key: str
    """What the requests of all of them share."""
    clients: list[Client]
    """Those that are being answered."""

    def are_waiting(self, running: Sequence[Answer]) -> bool:
        """Whether the next client can join. Others must not overtake one that cannot."""
        self.server.inbox.poll()
        for client in [client for client in self.clients if client.is_answered]:
            self.clients.remove(client)
            self.server.inbox.leave(client)
        return self._next(running) is not None

    def take(self, running: Sequence[Answer]) -> list[Answer]:
        """Start and return the answers of waiting clients."""
        taken: list[Answer] = []
        while client := self._next([*running, *taken]):
            self.server.inbox.waiting.remove(client)
            self.clients.append(client)
            self.server.report_answering(client)
            try:
                answer = self.start(client)
            except StudioError as error:  # It concerns this client alone.
                client.fail(_to_failure(error))
                continue
            taken += [answer] if answer else []
        return taken

    def start(self, client: Client) -> Answer | None:
        """Start an answer that must be decoded; give any other at once."""
        request = _request_of(client)
        if not request.ids:
            client.send(GenerationChunk(end=GenerationEnd(reason="stop", tokens=0)))
            return None
        return _start(request, self.model, self.tokenizer, client.send, lambda: client.is_gone)

    def _next(self, running: Sequence[Answer]) -> Client | None:
        if not self.server.inbox.waiting or is_readable(self.server.lifeline):
            return None
        client = self.server.inbox.waiting[0]
        request = _request_of(client)
        can_join = (
            _can_share(self.model, request)
            and fits(running, len(request.ids))
            and loaded_key(request) == self.key
        )
        return client if can_join else None


def _can_share(model: PreTrainedModel, request: GenerationRequest) -> bool:
    """Whether a request may be answered together with others.

    Recurrent models read padding as text.
    """
    is_plain = not model.config.is_encoder_decoder and not model._is_stateful  # noqa: SLF001 -- upstream has no other word
    return is_plain and not request.gives_scores and request.num_beams == 1


def _request_of(client: Client) -> GenerationRequest:
    assert client.request is not None  # noqa: S101 -- it has arrived
    return client.request


def _start(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[GenerationChunk], None],
    is_gone: Callable[[], bool],
) -> Answer | None:
    """Read the prompt and give scores; return an answer if one must be decoded."""
    if request.gives_scores:
        # It needs no room for an answer, and was truncated as in training.
        send(GenerationChunk(started=True))
        send(GenerationChunk(end=read(request, model)))
        return None
    budget = token_budget(request, model.config.get_text_config())
    send(GenerationChunk(started=True))
    formats: set[str] = set()
    if request.scored_from is not None:
        with record_compute_formats(model) as formats:
            send_prompt_scores(request, model, tokenizer, send)
    if budget == 0:
        computed_in = " and ".join(sorted(formats))
        end = GenerationEnd(reason="length", tokens=0, computed_in=computed_in)
        send(GenerationChunk(end=end))
        return None
    answer = start_answer(request, budget, model, tokenizer, send, is_gone)
    if request.num_beams > 1:
        search(answer, model, tokenizer)
        return None
    return answer


def _to_failure(error: Exception) -> ServiceFailure:
    failure = exception_mapping.explain(error)
    if isinstance(error, StudioError):
        return ServiceFailure(code=failure.code, message=failure.message, hint=failure.hint)
    return ServiceFailure(
        code=failure.code, message=failure.message, hint=_HINTS.get(failure.code, _LOG_HINT)
    )
