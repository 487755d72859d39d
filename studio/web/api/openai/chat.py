"""Chat completions and completions of the OpenAI-compatible API.

Neither a thread nor a session is held while a model generates, and a disconnect stops it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import StudioError, UnavailableError
from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import TokenizerRequest as Row
from studio.services.models import service_clients
from studio.services.models.served_models import ServedModel
from studio.services.models.service_clients import ResponseStream
from studio.services.openai import model_names
from studio.web.api.openai.chat_bodies import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationOptions,
)
from studio.web.api.openai.chat_responses import ResponseBuilder
from studio.web.http import errors
from studio.web.http.errors import status_for

router = APIRouter(prefix="/v1", tags=["openai"])

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
