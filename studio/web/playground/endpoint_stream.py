"""The answer of an endpoint as the events of a column: the browser sees neither address nor key."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import InvalidError
from studio.evaluation import answer_rules
from studio.protocols.chat_endpoints import ChatEndpoint
from studio.services.playground import endpoint_answers, endpoints
from studio.services.playground.endpoint_answers import EndpointAnswer
from studio.web.chat.prompt_requests import PromptRequest


async def answer_events(
    request: Request, asked: PromptRequest, name: str
) -> AsyncGenerator[dict[str, Any]]:
    """Ask the endpoint of a name. Yield the pieces of its answer, and how it ended."""
    settings = request.app.state.settings

    def find() -> ChatEndpoint:
        with read_session(request.app.state.engine) as db:
            return endpoints.get(db, settings, name)

    endpoint = await run_in_threadpool(find)
    body = to_body(endpoint, asked)
    answer, text, began_at = EndpointAnswer(), "", 0.0
    yield {"state": "remote"}
    pieces = endpoint_answers.stream(
        endpoint, body, answer, allow_internal=settings.allow_internal_addresses
    )
    async with aclosing(pieces):
        async for piece in pieces:
            if not began_at:
                began_at = time.monotonic()
                yield {"state": "answering", "source": _source_fields(endpoint, asked, answer)}
            text += piece.text
            if piece.text or piece.tokens:
                yield {"text": piece.text, "tokens": piece.tokens}
    end = {
        "tokens": answer.pieces if answer.tokens is None else answer.tokens,
        "seconds": round(time.monotonic() - began_at, 3),
        "is_cut": answer.reason == "length",
        "is_right": None if answer.calls else answer_rules.is_correct(text, asked.expected),
        "calls": answer.calls,
    }
    yield {"end": end, "source": _source_fields(endpoint, asked, answer)}


def to_body(endpoint: ChatEndpoint, asked: PromptRequest) -> dict[str, Any]:
    """Return what an endpoint is asked.

    Raises:
        InvalidError: It cannot be asked that.

    """
    if asked.is_text or asked.answer_start:
        raise InvalidError(
            "An endpoint can only be asked for whole answers of a conversation.",
            hint="Choose a conversation in the settings, and ask again.",
        )
    asked.to_options(endpoint.model)  # It checks the format and the functions.
    return asked.to_api(endpoint.model)


def _source_fields(
    endpoint: ChatEndpoint, asked: PromptRequest, answer: EndpointAnswer
) -> dict[str, Any]:
    model = answer.model or endpoint.model
    is_random = asked.temperature > 0 or "temperature" in answer.left_out
    return {
        "endpoint": endpoint.host,
        "base": f"{model} ({endpoint.host})",
        "run": None,
        "step": None,
        "model": model,
        "seed": asked.seed if is_random and "seed" not in answer.left_out else None,
        "is_random": is_random,
        "left_out": list(answer.left_out),
    }
