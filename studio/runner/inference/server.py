"""The server of the inference service: receives requests and streams answers."""

import os
import re
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from studio.errors import InvalidError, StudioError
from studio.processes.unix_sockets import is_hung_up, receive_all
from studio.protocols.inference_service import (
    MAX_REQUEST_BYTES,
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    InferenceStatus,
    WordTag,
)
from studio.protocols.tokenizer_service import ServiceFailure
from studio.recipe.base import BeamSearch
from studio.runner.inference.model_cache import ModelCache
from studio.training import exception_mapping
from studio.training.evaluation.sample_answers import record_compute_formats

_REPLACEMENT_CHARACTER = "�"
"""What a tokenizer decodes for an incomplete character."""


@dataclass(slots=True)
class TextStream:
    """Decodes tokens to text incrementally; withholds what may be the start of a stop sequence."""

    tokenizer: PreTrainedTokenizerBase
    stop: Sequence[str]
    strips_start: bool
    """Whether to drop leading spaces."""
    has_stopped: bool = False
    _ids: list[int] = field(default_factory=list)
    _decoded: int = 0
    """How many tokens have been decoded."""
    _prefix_start: int = 0
    """Start of the previously decoded piece: some tokenizers add a space depending on context."""
    _withheld: str = ""

    def add(self, token: int) -> str:
        """Add a token. Return the text that is final."""
        self._ids.append(token)
        new = self._decode_new()
        if new.endswith(_REPLACEMENT_CHARACTER):
            return ""
        self._prefix_start, self._decoded = self._decoded, len(self._ids)
        return self._emit(new)

    def finish(self) -> str:
        """Return the withheld text, now that nothing follows."""
        rest = self._emit(self._decode_new()) + self._withheld
        self._withheld = ""
        return "" if self.has_stopped else rest

    def _decode_new(self) -> str:
        decoded = self._decode(self._ids[self._prefix_start : self._decoded])
        return self._decode(self._ids[self._prefix_start :])[len(decoded) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _emit(self, new: str) -> str:
        if self.has_stopped:
            return ""
        text = self._withheld + new
        if self.strips_start:
            text = text.lstrip()
            self.strips_start = not text
        stop_index = min(
            (index for stop in self.stop if (index := text.find(stop)) >= 0), default=-1
        )
        if stop_index >= 0:
            self.has_stopped, self._withheld = True, ""
            return text[:stop_index]
        withheld = max((_partial_stop_length(text, stop) for stop in self.stop), default=0)
        self._withheld = text[len(text) - withheld :]
        return text[: len(text) - withheld]


class _TokenStreamer(BaseStreamer):  # type: ignore[misc] # upstream is untyped
    """Passes each token on, except for the prompt, which arrives first."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._is_prompt:
            self._is_prompt = False
            return
        for token in value.flatten().tolist():
            self._on_token(token)

    def end(self) -> None:
        """Do nothing: no token is buffered."""


class _StopWhen(StoppingCriteria):  # type: ignore[misc] # upstream is untyped
    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    def __call__(
        self, input_ids: torch.Tensor, _scores: torch.Tensor, **_rest: object
    ) -> torch.Tensor:
        return torch.full((len(input_ids),), self._should_stop(), device=input_ids.device)


def generate(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[str], None],
    is_gone: Callable[[], bool],
) -> GenerationEnd:
    """Generate an answer and send its text as it arrives. Stop when the client is gone."""
    text = TextStream(tokenizer, request.stop, request.is_turn)
    written: list[int] = []

    def on_token(token: int) -> None:
        written.append(token)
        if token not in request.stops and (new := text.add(token)):
            send(new)

    if request.seed is not None:
        torch.manual_seed(request.seed)
    inputs, is_streamed = torch.tensor([request.ids], device=model.device), request.num_beams == 1
    with torch.inference_mode(), record_compute_formats(model) as formats:
        output = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=request.most,
            eos_token_id=request.stops,
            pad_token_id=tokenizer.pad_token_id,
            # Which draft becomes the answer is known at the end.
            streamer=_TokenStreamer(on_token) if is_streamed else None,
            stopping_criteria=[_StopWhen(lambda: text.has_stopped or is_gone())],
            **_sampling_arguments(request),
            **request.spoken,
        )
    if not is_streamed:
        start = 1 if model.config.is_encoder_decoder else len(request.ids)
        for token in output[0, start:].tolist():
            on_token(token)
    if rest := text.finish():
        send(rest)
    has_ended = text.has_stopped or written[-1] in request.stops
    return GenerationEnd(
        reason="stop" if has_ended else "length",
        tokens=len(written),
        computed_in=" and ".join(sorted(formats)),
    )


def give_scores(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return what a model says of the prompt that it reads, by name."""
    inputs = torch.tensor([request.ids], device=model.device)
    with torch.inference_mode(), record_compute_formats(model) as formats:
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0]
    given: list[int] = []
    if model.config.problem_type == "single_label_classification":
        logits = logits.softmax(dim=-1)
        given = [int(logits.argmax())]
    elif model.config.problem_type == "multi_label_classification":
        logits = logits.sigmoid()
        given = (logits >= model.config.label_threshold).nonzero().flatten().tolist()
    elif hasattr(model.config, "target_means"):
        means, deviations = model.config.target_means, model.config.target_deviations
        logits = logits.double() * logits.new_tensor(deviations) + logits.new_tensor(means)
    names = model.config.id2label
    return GenerationEnd(
        reason="stop",
        tokens=len(request.ids),
        computed_in=" and ".join(sorted(formats)),
        scores={names[number]: value for number, value in enumerate(logits.tolist())},
        labels=[names[number] for number in given],
    )


def check_steps(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return how likely each step of the solution is right that the prompt holds."""
    inputs = torch.tensor([request.ids], device=model.device)
    with torch.inference_mode(), record_compute_formats(model) as formats:
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0]
    likely = logits[request.places].float().softmax(dim=-1)[:, model.config.label2id["right"]]
    return GenerationEnd(
        reason="stop",
        tokens=len(request.ids),
        computed_in=" and ".join(sorted(formats)),
        steps=likely.tolist(),
    )


def tag_words(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return the tag of each word of the text in the prompt, with its probability."""
    inputs = torch.tensor([request.ids], device=model.device)
    with torch.inference_mode(), record_compute_formats(model) as formats:
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0]
    likely, given = logits[request.places].float().softmax(dim=-1).max(dim=-1)
    tags = [model.config.id2label[number] for number in given.tolist()]
    for word, (before, place) in enumerate(pairwise(request.places), 1):
        if before == place:  # One token holds both words.
            tags[word] = re.sub("^B-", "I-", tags[word])
    return GenerationEnd(
        reason="stop",
        tokens=len(request.ids),
        computed_in=" and ".join(sorted(formats)),
        tags=[
            WordTag(tag=tag, likely=share) for tag, share in zip(tags, likely.tolist(), strict=True)
        ],
    )


def _read(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return what a model says of the prompt that it reads."""
    if request.gives_tags:
        return tag_words(request, model)
    return check_steps(request, model) if request.places else give_scores(request, model)


def token_budget(request: GenerationRequest, config: object) -> int:
    """Return how many tokens an answer may have.

    Raises:
        InvalidError: the prompt leaves no room for an answer.

    """
    context = getattr(config, "max_position_embeddings", None) or 2**20
    if getattr(config, "is_encoder_decoder", False):
        # The prompt is read by another half of the model, and was truncated.
        return min(context, request.most or context)
    remaining = context - len(request.ids)
    if remaining < 1:
        raise InvalidError(
            f"The prompt has {len(request.ids):,} tokens; this model's context is {context:,}.",
            hint="Shorten the messages.",
            param="messages",
        )
    return min(remaining, request.most or remaining)


def _sampling_arguments(request: GenerationRequest) -> dict[str, object]:
    """Return the sampling arguments; the model's own generation config is ignored.

    Options that OpenAI's API lacks are switched off, so that a temperature behaves as it does
    there.
    """
    search = BeamSearch(request.num_beams, request.length_penalty)
    plain: dict[str, object] = {"repetition_penalty": 1.0, "use_cache": True} | search.arguments
    if request.temperature == 0:
        return plain | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    chosen: dict[str, object] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0,
    }
    return plain | {"do_sample": True} | chosen


def _partial_stop_length(text: str, stop: str) -> int:
    """Return the length of the longest prefix of a stop sequence that the text ends with."""
    limit = min(len(text), len(stop) - 1)
    return next((size for size in range(limit, 0, -1) if text.endswith(stop[:size])), 0)


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
        return _read(request, model)
    budget = token_budget(request, model.config.get_text_config())
    send(GenerationChunk(started=True))
    return generate(
        request.model_copy(update={"most": budget}),
        model,
        tokenizer,
        lambda text: send(GenerationChunk(text=text)),
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
