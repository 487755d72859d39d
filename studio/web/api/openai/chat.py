"""Chat completions and completions of the OpenAI-compatible API.

Neither a thread nor a session is held while a model generates, and a disconnect stops it.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import StudioError
from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.services.models.served_models import ServedModel
from studio.services.openai import model_names
from studio.web.api.openai import endpoint_proxy, endpoint_use, prompts
from studio.web.api.openai.answers import Answers
from studio.web.api.openai.chat_bodies import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationOptions,
)
from studio.web.api.openai.chat_responses import Choice, ResponseBuilder
from studio.web.api.openai.disconnects import until_disconnect
from studio.web.api.openai.endpoint_use import EndpointUse, UsingResponse
from studio.web.http import errors
from studio.web.http.errors import status_for

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/chat/completions")
async def chat(sent: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, with the chat template the model was trained with."""
    use = await endpoint_use.begin(request, sent.model)
    if use is not None and use.is_external:
        return await endpoint_proxy.forward(request, use, "chat/completions", sent)
    return await _respond(request, _read_options(sent, use), use, is_chat=True)


@router.post("/completions")
async def complete(sent: CompletionRequest, request: Request) -> Response:
    """Continue a text, without a chat template."""
    use = await endpoint_use.begin(request, sent.model)
    if use is not None and use.is_external:
        return await endpoint_proxy.forward(request, use, "completions", sent)
    return await _respond(request, _read_options(sent, use), use, is_chat=False)


async def answer(request: Request, sent: ChatCompletionRequest) -> dict[str, Any]:
    """Return the complete answer to a conversation, for routes that ask a model themselves.

    Raises:
        StudioError: The model cannot be asked, or the client of the request has disconnected.

    """
    use = await endpoint_use.begin(request, sent.model)
    if use is not None and use.is_external:
        return await endpoint_proxy.ask(request, use, sent)
    pieces, builder, choices = await _start(request, _read_options(sent, use), use, is_chat=True)
    await until_disconnect(request, _read_all(pieces))
    return builder.full_response(choices)


def _read_options(
    sent: ChatCompletionRequest | CompletionRequest, use: EndpointUse | None
) -> GenerationOptions:
    try:
        return sent.to_request()
    except BaseException:
        endpoint_use.close(use)
        raise


async def _respond(
    request: Request, options: GenerationOptions, use: EndpointUse | None, *, is_chat: bool
) -> Response:
    pieces, builder, choices = await _start(request, options, use, is_chat=is_chat)
    if options.is_streamed:
        events = _stream_events(pieces, builder, choices, wants_usage=options.wants_usage)
        return UsingResponse(events, use)
    await until_disconnect(request, _read_all(pieces))
    return JSONResponse(builder.full_response(choices))


async def _start(
    request: Request, options: GenerationOptions, use: EndpointUse | None, *, is_chat: bool
) -> tuple[AsyncGenerator[tuple[Choice, str, GenerationChunk]], ResponseBuilder, list[Choice]]:
    """Return the pieces of the answers, and what they are added to, once the first one starts."""
    try:
        return await _start_answers(request, options, use, is_chat=is_chat)
    except BaseException:
        endpoint_use.close(use)
        raise


async def _start_answers(
    request: Request, options: GenerationOptions, use: EndpointUse | None, *, is_chat: bool
) -> tuple[AsyncGenerator[tuple[Choice, str, GenerationChunk]], ResponseBuilder, list[Choice]]:
    asked = await _build_request(request, options)
    scored = 0 if asked.scored_from is None else len(asked.ids) - asked.scored_from
    is_score = options.kind == "answer"
    builder = ResponseBuilder(
        options.model,
        is_chat,
        has_logprobs=asked.top_logprobs is not None,
        prompt_tokens=len(asked.ids) - (scored if is_score else 0),
    )
    choices = [Choice(index, options.prefix, scored, is_score) for index in range(options.count)]
    requests = [asked.model_copy(update={"seed": seed}) for seed in options.seeds]
    answers = Answers(request.app.state.settings, requests)
    await until_disconnect(request, answers.start())
    return _add_pieces(answers, choices, use), builder, choices


async def _build_request(request: Request, options: GenerationOptions) -> GenerationRequest:
    """Look up the model, and render the prompt."""
    state, settings = request.app.state, request.app.state.settings

    def found() -> ServedModel:
        with read_session(state.engine) as db:
            return model_names.resolve_served_model(db, settings.runs, options.model)

    async with state.seats.readers:
        served = await run_in_threadpool(found)
    asked, _hash = await run_in_threadpool(prompts.build_request, settings, served, options)
    return asked


async def _add_pieces(
    answers: Answers, choices: list[Choice], use: EndpointUse | None
) -> AsyncGenerator[tuple[Choice, str, GenerationChunk]]:
    """Add pieces to choices as they arrive, and yield each with its text.

    Fewer answers than choices are generated if all would be equal.
    """
    try:
        async for index, chunk in answers.chunks():
            for choice in choices[index :: len(answers.requests)]:
                yield choice, choice.add(chunk), chunk
    finally:
        endpoint_use.close(use)
        await answers.close()


async def _read_all(pieces: AsyncIterator[object]) -> None:
    async for _piece in pieces:
        pass


async def _stream_events(
    pieces: AsyncGenerator[tuple[Choice, str, GenerationChunk]],
    builder: ResponseBuilder,
    choices: list[Choice],
    *,
    wants_usage: bool,
) -> AsyncIterator[str]:
    """Yield answers as events. An error at this point can only be sent as one of them."""
    usage = {"usage": None} if wants_usage else {}
    try:
        async for choice, text, chunk in pieces:
            if chunk.started:
                yield _format_event(builder.first_chunk(choice) | usage)
            elif chunk.end is not None:
                if chunk.end.calls:
                    yield _format_event(builder.call_chunk(choice) | usage)
                yield _format_event(builder.last_chunk(choice) | usage)
            elif text or chunk.tokens:
                yield _format_event(builder.text_chunk(choice, text, chunk.tokens) | usage)
        if wants_usage:
            yield _format_event(builder.usage_chunk(choices))
        yield "data: [DONE]\n\n"
    except StudioError as error:
        payload = errors.openai_error_response(error, status_for(error)).body
        yield f"data: {bytes(payload).decode()}\n\n"
    finally:
        await pieces.aclose()


def _format_event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
