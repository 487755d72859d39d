"""Answers of a chat as a stream of events: what the model waits for, its text, how it ended."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import InvalidError, StudioError, UnavailableError
from studio.evaluation import answer_rules
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.services.chat import chat_models, slot_wait
from studio.services.chat.chat_models import Side
from studio.services.chat.slot_wait import SlotWait
from studio.services.models import loaded_model, service_clients
from studio.services.models.service_clients import FIRST_WORD_TIMEOUT_SECONDS, ResponseStream
from studio.services.runs import runs
from studio.web.http.event_hub import StreamSlot
from studio.web.i18n import translation

router = APIRouter(include_in_schema=False)

RETRY_SECONDS = 1.0
"""How often to ask for a slot while none is free."""

MAX_MESSAGE_CHARS = 1_000_000
"""Far more than a context holds; a longer prompt is refused by its number of tokens."""

NO_SLOT = "no_free_slot"


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Len(0, MAX_MESSAGE_CHARS)]


class AnswerRequest(BaseModel):
    """What one of the two models is asked."""

    model_config = ConfigDict(extra="forbid")

    side: Side
    checkpoint: Annotated[int, Ge(0), Le(10**12)] | None = None
    messages: Annotated[list[ChatMessage], Len(1, 1000)]
    is_text: bool = False
    """Whether the last message is a text to continue, without a chat template."""
    expected: Annotated[str, Len(0, MAX_MESSAGE_CHARS)] = ""
    max_tokens: Annotated[int, Ge(1), Le(4096)] = 256
    temperature: Annotated[float, Ge(0), Le(2)] = 0
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The prompt as the tokenizer service takes it."""
        if self.is_text:
            return {"text": self.messages[-1].content}
        return {"messages": [message.model_dump() for message in self.messages]}

    @property
    def options(self) -> GenerationRequest:
        return GenerationRequest(
            model="",
            ids=[],
            stops=[],
            most=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            is_turn=not self.is_text,
        )


def _existing_run(request: Request, run_id: int) -> int:
    """Return 404 before the stream starts: afterwards the status cannot be set."""
    with read_session(request.app.state.engine) as db:
        runs.get(db, run_id)
    return run_id


@router.post(
    "/runs/{run_id}/chat/answers", response_class=EventSourceResponse, dependencies=[StreamSlot]
)
async def answer(
    request: Request, run_id: Annotated[int, Depends(_existing_run)], asked: AnswerRequest
) -> AsyncIterator[ServerSentEvent]:
    """Stream the answer of the base model or of the run's model; a disconnect stops it."""
    try:
        async for event in _answer_events(request, run_id, asked):
            yield ServerSentEvent(raw_data=json.dumps(event, ensure_ascii=False))
    except StudioError as error:
        yield ServerSentEvent(raw_data=json.dumps({"error": _error_fields(error)}))


@router.post("/runs/{run_id}/chat/load")
async def load(
    request: Request, run_id: Annotated[int, Depends(_existing_run)], asked: AnswerRequest
) -> Response:
    """Load the model before the first prompt, if a slot is free; the first start takes seconds."""
    with suppress(StudioError):  # The first prompt says what is wrong.
        generation = await run_in_threadpool(_build_request, request, run_id, asked)
        stream = await service_clients.send_generation_request(
            request.app.state.settings, generation.model_copy(update={"ids": []})
        )
        try:
            async for _event in _stream_events(stream, asked):
                pass
        finally:
            await stream.close()
    return Response(status_code=204)


async def _answer_events(
    request: Request, run_id: int, asked: AnswerRequest
) -> AsyncIterator[dict[str, Any]]:
    """Wait for a slot if there is none, then yield the events of an answer."""
    settings, hub = request.app.state.settings, request.app.state.hub
    generation = await run_in_threadpool(_build_request, request, run_id, asked)
    state: dict[str, Any] = {}
    while not hub.is_closing:
        previous, state = state, await run_in_threadpool(_read_state, request)
        if state != previous:
            yield state
        stream = await service_clients.send_generation_request(settings, generation)
        try:
            async for event in _stream_events(stream, asked):
                yield event
        except UnavailableError as error:
            if error.code != NO_SLOT:
                raise
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
        finally:
            await stream.close()


def _build_request(request: Request, run_id: int, asked: AnswerRequest) -> GenerationRequest:
    """Find the model and tokenise the prompt; both fail in words before a model is loaded."""
    state = request.app.state
    if not asked.messages[-1].content.strip():
        raise InvalidError("The prompt is empty.", hint="Write something first.")
    with read_session(state.engine) as db:
        if wait := slot_wait.find_worker_wait(db):
            raise UnavailableError(wait.message, hint="Start one with `studio worker`.")
        model = chat_models.get_chat_model(
            db, runs.get(db, run_id), state.settings.runs, asked.side, asked.checkpoint
        )
    row = TokenizerRequest(
        kind="prompt", model=model.served.folder, row=asked.row, chat_template=model.template
    )
    prompt = service_clients.render_prompt(state.settings, row)
    return model.served.fill_in(asked.options, model.name, prompt)


def _read_state(request: Request) -> dict[str, Any]:
    """Return what happens until the service accepts the request."""
    with read_session(request.app.state.engine) as db:
        if wait := slot_wait.find_wait(db):
            return _waiting_event(wait)
        row = loaded_model.current(db)
    if row is None:
        return {"state": "starting"}
    return {"state": "queued" if row.leaves_at is None else "accepted"}


def _waiting_event(wait: SlotWait) -> dict[str, Any]:
    run = wait.run
    link = {"href": f"/runs/{run.id}", "title": f"{run.name} #{run.id}"} if run else None
    return {"state": "waiting", "message": translation.translate(wait.message), "link": link}


@dataclass(slots=True)
class _Answer:
    """The text of an answer so far, and when it began."""

    text: str = ""
    began_at: float = 0.0


async def _stream_events(
    stream: ResponseStream, asked: AnswerRequest
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of an answer.

    Raises:
        StudioError: No slot is free, the model cannot answer, or it was silent for too long.

    """
    answer, chunk = _Answer(), GenerationChunk()
    while chunk.end is None:
        chunk = await _read(stream)
        answer.text += chunk.text
        if chunk.loading:
            yield {"state": "loading"}
        elif chunk.started:
            answer.began_at = time.monotonic()
            yield {"state": "answering"}
        elif chunk.text:
            yield {"text": chunk.text}
    yield {"end": _end_fields(answer, chunk.end, asked)}


async def _read(stream: ResponseStream) -> GenerationChunk:
    try:
        async with asyncio.timeout(FIRST_WORD_TIMEOUT_SECONDS):
            return await stream.read()
    except TimeoutError as error:
        raise UnavailableError(
            "The model took too long to start answering.", hint="Try again later."
        ) from error


def _end_fields(answer: _Answer, end: GenerationEnd, asked: AnswerRequest) -> dict[str, Any]:
    return {
        "tokens": end.tokens,
        "seconds": round(time.monotonic() - answer.began_at, 3),
        "is_cut": end.reason == "length",
        "is_right": None if asked.is_text else answer_rules.is_correct(answer.text, asked.expected),
        "computed_in": end.computed_in,
    }


def _error_fields(error: StudioError) -> dict[str, str]:
    translate = translation.translate
    return {"message": translate(error.message), "hint": translate(error.hint)}
