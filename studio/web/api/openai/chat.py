"""Models, chat completions and completions of the OpenAI-compatible API.

Neither a thread nor a session is held while a model generates, and a disconnect stops it.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Le, Len
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import InvalidError, StudioError, UnavailableError
from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import TokenizerRequest as Row
from studio.services.models import service_clients
from studio.services.models.served_models import ServedModel
from studio.services.models.service_clients import ResponseStream
from studio.services.openai import model_names
from studio.services.openai.model_names import ModelInfo
from studio.web.api.openai.schemas import (
    Body,
    Deleted,
    OpenAIListing,
    Out,
    check_fields,
    make_page,
    unix_seconds,
)
from studio.web.http import errors
from studio.web.http.deps import DB, Config
from studio.web.http.errors import status_for

router = APIRouter(prefix="/v1", tags=["openai"])


IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that do not affect the answer: accepted and ignored."""

NEUTRAL_VALUES: dict[str, Collection[object]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "audio": (),
    "prediction": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Unsupported fields, each with the values that change nothing; any other value is rejected."""

_MESSAGE_NEUTRAL_VALUES: dict[str, Collection[object]] = {
    "tool_calls": ([],),
    "refusal": (),
    "audio": (),
}
_DEFAULT_COMPLETION_TOKENS = 16
"""The default length of a completion, as in OpenAI's API."""


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted and ignored: answers are not padded."""


class TextPart(Body):
    type: Literal["text"]
    text: str


class Turn(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Len(1, 1000)]
    name: str | None = None
    """Accepted and ignored: chat templates do not use it."""

    def to_message(self) -> dict[str, str]:
        check_fields(self, (), _MESSAGE_NEUTRAL_VALUES)
        if isinstance(self.content, str):
            text = self.content
        else:
            text = "".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    model: str
    row: dict[str, Any]
    """The messages or text to continue, as the tokenizer service takes it."""
    options: GenerationRequest
    """The sampling options; the model and the tokens are filled in later."""
    is_streamed: bool
    wants_usage: bool


class _GenerationBody(Body):
    model: Annotated[str, Len(1, 1000)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Ge(1), Le(2**20)] | None = None
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    stop: Annotated[str, Len(1, 1000)] | (
        Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 4)] | None
    ) = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None

    def _to_request(
        self, row: dict[str, Any], max_tokens: int | None, *, is_turn: bool
    ) -> GenerationOptions:
        check_fields(self, IGNORED_FIELDS, NEUTRAL_VALUES)
        options = self.stream_options or StreamOptions()
        check_fields(options, (), {})
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        generation_request = GenerationRequest(
            model=self.model,
            ids=[],
            stops=[],
            stop=stop,
            most=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            # 0 would leave no token to sample; the smallest share keeps the likeliest one.
            top_p=1.0 if self.top_p is None else max(self.top_p, 1e-6),
            seed=self.seed,
            is_turn=is_turn,
        )
        return GenerationOptions(
            model=self.model,
            row=row,
            options=generation_request,
            is_streamed=bool(self.stream),
            wants_usage=options.include_usage,
        )


class ChatCompletionRequest(_GenerationBody):
    messages: Annotated[list[Turn], Len(1, 10_000)]
    max_completion_tokens: Annotated[int, Ge(1), Le(2**20)] | None = None
    """Takes precedence over `max_tokens`; without either, up to the model's context length."""

    def to_request(self) -> GenerationOptions:
        """Return the validated options.

        Raises:
            InvalidError: A field asks for something unsupported.

        """
        row = {"messages": [turn.to_message() for turn in self.messages]}
        max_tokens = self.max_completion_tokens or self.max_tokens
        return self._to_request(row, max_tokens, is_turn=True)


class CompletionRequest(_GenerationBody):
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Len(1, 1)]

    def to_request(self) -> GenerationOptions:
        """Return the validated options.

        Raises:
            InvalidError: A field asks for something unsupported.

        """
        text = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        if not text:
            raise InvalidError("The prompt is empty.", param="prompt")
        return self._to_request(
            {"text": text}, self.max_tokens or _DEFAULT_COMPLETION_TOKENS, is_turn=False
        )


@dataclass(frozen=True, slots=True)
class ResponseBuilder:
    """Builds the JSON of one answer, as a chat completion or a completion."""

    model: str
    is_chat: bool
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def full_response(self, text: str, end: GenerationEnd, prompt: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        content: dict[str, Any] = {"message": message} if self.is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": end.reason}
        kind = "chat.completion" if self.is_chat else "text_completion"
        return (
            self._response(kind, [choice])
            | {"usage": _token_usage(end, prompt)}
            | _computed_in(end)
        )

    def first_chunk(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""} if self.is_chat else "")

    def text_chunk(self, text: str) -> dict[str, Any]:
        return self._chunk({"content": text} if self.is_chat else text)

    def last_chunk(self, end: GenerationEnd) -> dict[str, Any]:
        return self._chunk({} if self.is_chat else "", end.reason) | _computed_in(end)

    def usage_chunk(self, end: GenerationEnd, prompt: int) -> dict[str, Any]:
        return self._response(self._chunk_kind, []) | {"usage": _token_usage(end, prompt)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _chunk(self, content: dict[str, str] | str, reason: str | None = None) -> dict[str, Any]:
        key = "delta" if self.is_chat else "text"
        choice = {"index": 0, key: content, "logprobs": None, "finish_reason": reason}
        return self._response(self._chunk_kind, [choice])

    def _response(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"chatcmpl-{self.id}" if self.is_chat else f"cmpl-{self.id}"
        fields = {"id": name, "object": kind, "created": self.created, "model": self.model}
        return fields | {"choices": choices, "system_fingerprint": None}


def _computed_in(end: GenerationEnd) -> dict[str, Any]:
    """Return the number format of the computation, which OpenAI's API has no field for."""
    return {"x_studio": {"computed_in": end.computed_in}} if end.computed_in else {}


def _token_usage(end: GenerationEnd, prompt: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": end.tokens,
        "total_tokens": prompt + end.tokens,
    }


T = TypeVar("T")


@router.post("/chat/completions")
async def chat(sent: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, with the chat template the model was trained with."""
    return await _respond(request, sent.to_request(), ResponseBuilder(sent.model, is_chat=True))


@router.post("/completions")
async def complete(sent: CompletionRequest, request: Request) -> Response:
    """Continue a text, without a chat template."""
    return await _respond(request, sent.to_request(), ResponseBuilder(sent.model, is_chat=False))


async def _respond(
    request: Request, options: GenerationOptions, builder: ResponseBuilder
) -> Response:
    generation_request = await _build_request(request, options)
    stream = await _until_disconnect(
        request, service_clients.open_stream(request.app.state.settings, generation_request)
    )
    if options.is_streamed:
        parts = _stream_events(stream, builder, len(generation_request.ids), options)
        return StreamingResponse(parts, media_type="text/event-stream")
    text, end = await _until_disconnect(request, _collect_answer(stream))
    return JSONResponse(builder.full_response(text, end, len(generation_request.ids)))


async def _build_request(request: Request, options: GenerationOptions) -> GenerationRequest:
    """Look up the model; the tokenizer service renders the prompt: templates are untrusted."""
    state, settings = request.app.state, request.app.state.settings

    def found() -> ServedModel:
        with read_session(state.engine) as db:
            return model_names.resolve_served_model(db, settings.runs, options.model)

    async with state.seats.readers:
        served_model = await run_in_threadpool(found)
    row = Row(kind="prompt", model=served_model.folder, row=options.row)
    prompt = await run_in_threadpool(service_clients.render_prompt, settings, row)
    return served_model.fill_in(options.options, options.model, prompt)


async def _collect_answer(stream: ResponseStream) -> tuple[str, GenerationEnd]:
    try:
        chunks = [chunk async for chunk in stream.chunks()]
    finally:
        await stream.close()
    *parts, end = chunks
    assert isinstance(end, GenerationEnd)  # noqa: S101 -- the last chunk is always the end
    return "".join(map(str, parts)), end


async def _stream_events(
    stream: ResponseStream, builder: ResponseBuilder, prompt: int, options: GenerationOptions
) -> AsyncIterator[str]:
    """Yield an answer as events. An error at this point can only be sent as one of them."""
    usage = {"usage": None} if options.wants_usage else {}
    try:
        yield _format_event(builder.first_chunk() | usage)
        async for chunk in stream.chunks():
            if isinstance(chunk, GenerationEnd):
                yield _format_event(builder.last_chunk(chunk) | usage)
                if options.wants_usage:
                    yield _format_event(builder.usage_chunk(chunk, prompt))
            elif chunk:
                yield _format_event(builder.text_chunk(chunk) | usage)
        yield "data: [DONE]\n\n"
    except StudioError as error:
        payload = errors.openai_error_response(error, status_for(error)).body
        yield f"data: {bytes(payload).decode()}\n\n"
    finally:
        await stream.close()


def _format_event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it if the client disconnects."""
    task, disconnect = (
        asyncio.ensure_future(work),
        asyncio.ensure_future(_wait_for_disconnect(request)),
    )
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        disconnect.cancel()
        task.cancel()
    raise UnavailableError("The client has disconnected.")


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


models_router = APIRouter(prefix="/v1/models", tags=["openai"])


class OpenAIModelOut(Out):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


@models_router.get("")
def newest(db: DB) -> OpenAIListing[OpenAIModelOut]:
    """List the models: fine-tuned models, then base models, each newest first."""
    listed = [_model_out(model) for model in model_names.list_models(db)]
    return make_page(listed, [model.id for model in listed], len(listed))


# Names contain slashes and colons, and clients do not escape them.
@models_router.get("/{name:path}")
def show(name: str, db: DB, config: Config) -> OpenAIModelOut:
    return _model_out(model_names.get(db, config.runs, name))


@models_router.delete("/{name:path}")
def delete(name: str, db: DB, config: Config) -> Deleted:
    """Move the run that trained the model to the trash, where it can be restored for weeks."""
    model_names.delete(db, config.runs, name)
    return Deleted(id=name, object="model")


def _model_out(model: ModelInfo) -> OpenAIModelOut:
    return OpenAIModelOut(
        id=model.name, created=unix_seconds(model.created_at), owned_by=model_names.ORGANISATION
    )
