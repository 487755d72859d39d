"""The server of the inference service: receives requests and streams answers.

Requests that wait for the same base model are answered together, whichever adapters they ask for.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import torch
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
from studio.runner.inference.image_inputs import (
    ImageInputs,
    image_token,
    misplaced_error,
    read_images,
)
from studio.runner.inference.mixed_adapters import answering
from studio.runner.inference.model_cache import LoadedBase, ModelCache, base_key
from studio.runner.inference.prompt_scores import send_prompt_scores
from studio.runner.inference.reading import read
from studio.runner.inference.text_values import send_values
from studio.training import exception_mapping
from studio.training.evaluation.sample_answers import record_compute_formats

_LOG_HINT = "Try again. For details, see speaker.log in the studio's folder."
_HINTS = {"out_of_memory": "Choose a smaller model, or shorten the prompt."}
"""Hints for failures of inference; those for training do not apply."""

_FOREVER = 365 * 86400.0
"""Seconds that no wait lasts."""

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
            while client := self.inbox.wait(self.lifeline, self._patience):
                self._answer(client)
        finally:
            self.inbox.refuse(_UNLOADED)

    @property
    def _patience(self) -> float:
        """How long to wait for a request; models of endpoints stay loaded."""
        return _FOREVER if self.models.has_pins else self.idle_seconds

    def _answer(self, client: Client) -> None:
        """Answer a client, and those that ask for the same base model meanwhile."""
        request = _request_of(client)
        if request.unpins:
            self.models.unpin(request.unpins)
            client.send(GenerationChunk(end=GenerationEnd(reason="stop", tokens=0)))
            self.inbox.leave(client)
            return
        self.report_answering(client)
        clients = [client]
        if not self.models.is_loaded(request):
            client.send(GenerationChunk(loading=True))
        try:
            base = self.models.base_for(request)
            room = _Room(self, base, clients)
            if answer := room.start(client, base.activate(request)):
                tokenizer = base.tokenizer_for(request)  # of which only the padding counts
                decode([answer], base.plain, tokenizer, room, room.adapting)
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
    """The clients that one loaded base answers, and those of the waiting that may join them."""

    server: InferenceServer
    base: LoadedBase
    clients: list[Client]
    """Those that are being answered."""
    apart: Client | None = None
    """One that cannot be answered together with them, as has been tried."""

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
            try:
                adapter = self._adapter_beside(client, [*running, *taken])
                if adapter is None:
                    self.apart = client
                    break
                self._let_in(client)
                answer = self.start(client, adapter)
            except StudioError as error:  # It concerns this client alone.
                self._let_in(client)
                client.fail(_to_failure(error))
                continue
            taken += [answer] if answer else []
        return taken

    def start(self, client: Client, adapter: str) -> Answer | None:
        """Start an answer that must be decoded; give any other at once."""
        request = _request_of(client)
        if not request.ids and not request.texts:
            client.send(GenerationChunk(end=GenerationEnd(reason="stop", tokens=0)))
            return None
        tokenizer = self.base.tokenizer_for(request)
        with answering(self.base.model, [adapter]):
            images = self._read_images(request)
            answer = _start(
                request,
                self.base.plain,
                tokenizer,
                client.send,
                lambda: client.is_gone,
                images,
            )
        if answer is not None:
            answer.adapter = adapter
        return answer

    def _read_images(self, request: GenerationRequest) -> ImageInputs | None:
        token = image_token(self.base.plain)
        if request.images and token is not None:
            return read_images(request, self.base.reader_for(request))
        if request.images or token in request.ids:
            raise misplaced_error()
        return None

    def adapting(self, answers: Sequence[Answer]) -> AbstractContextManager[None]:
        """Let each of the answers of a pass be given by its own adapter."""
        return answering(self.base.model, [answer.adapter for answer in answers])

    def _adapter_beside(self, client: Client, running: Sequence[Answer]) -> str | None:
        """Load the adapter that a client asks for; return None if it must wait for the others."""
        others = {answer.adapter for answer in running}
        try:
            return self.base.activate_beside(_request_of(client), others)
        except torch.OutOfMemoryError:  # There may be enough when they have ended.
            return None

    def _let_in(self, client: Client) -> None:
        if client in self.clients:
            return
        self.server.inbox.waiting.remove(client)
        self.clients.append(client)
        self.server.models.pin(_request_of(client))
        self.server.report_answering(client)

    def _next(self, running: Sequence[Answer]) -> Client | None:
        if not self.server.inbox.waiting or is_readable(self.server.lifeline):
            return None
        client = self.server.inbox.waiting[0]
        request = _request_of(client)
        can_join = (
            client is not self.apart
            and not request.unpins
            and _can_share(self.base.plain, request)
            and fits(running, len(request.ids))
            and base_key(request) == self.base.key
        )
        return client if can_join else None


def _can_share(model: PreTrainedModel, request: GenerationRequest) -> bool:
    """Whether a request may be answered together with others.

    Recurrent models read padding as text.
    """
    is_plain = not model.config.is_encoder_decoder and not model._is_stateful  # noqa: SLF001 -- upstream has no other word
    return is_plain and not request.reads_only and request.num_beams == 1


def _request_of(client: Client) -> GenerationRequest:
    assert client.request is not None  # noqa: S101 -- it has arrived
    return client.request


def _start(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[GenerationChunk], None],
    is_gone: Callable[[], bool],
    images: ImageInputs | None,
) -> Answer | None:
    """Read the prompt and give scores; return an answer if one must be decoded."""
    if request.texts:
        send(GenerationChunk(started=True))
        send_values(request, model, send, is_gone)
        return None
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
            send_prompt_scores(request, model, tokenizer, send, images)
    if budget == 0:
        computed_in = " and ".join(sorted(formats))
        end = GenerationEnd(reason="length", tokens=0, computed_in=computed_in)
        send(GenerationChunk(end=end))
        return None
    answer = start_answer(request, budget, model, tokenizer, send, is_gone)
    answer.images = images
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
