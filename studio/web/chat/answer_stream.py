"""Answers of a chat as a stream of events: what the model waits for, its text, how it ended."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le
from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import StudioError, UnavailableError
from studio.evaluation import answer_rules
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.services.chat import chat_models, slot_wait
from studio.services.chat.chat_models import ChatModel, Side
from studio.services.chat.slot_wait import SlotWait
from studio.services.models import loaded_model, service_clients
from studio.services.models.service_clients import ResponseStream
from studio.services.runs import runs
from studio.web.api.openai import prompts
from studio.web.api.openai.chat_responses import tool_call
from studio.web.chat.prompt_requests import PromptRequest, ScoredAnswer
from studio.web.http.event_hub import StreamSlot
from studio.web.i18n import translation

router = APIRouter(include_in_schema=False)

RETRY_SECONDS = 1.0
"""How often to ask for a slot while none is free."""

NO_SLOT = "no_free_slot"


class ChatSide(BaseModel):
    """Which of the two models of a run's chat is meant."""

    side: Side
    checkpoint: Annotated[int, Ge(0), Le(10**12)] | None = None


class AnswerRequest(PromptRequest, ChatSide):
    """What one of the two models of a run's chat is asked."""


class ChatScore(ScoredAnswer, ChatSide):
    """An answer that one of the two models of a run's chat scores."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and the model that it is for."""

    prompt: PromptRequest
    find_model: Callable[[Session], ChatModel]
    """Raises a StudioError if there is no such model."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A request as the inference service gets it, and the model that it names."""

    request: GenerationRequest
    model: ChatModel
    template_hash: str


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
    question = chat_question(request, run_id, asked)
    async for event in to_server_events(answer_events(request, question)):
        yield event


@router.post("/runs/{run_id}/chat/load")
async def load(
    request: Request, run_id: Annotated[int, Depends(_existing_run)], asked: AnswerRequest
) -> Response:
    """Load the model before the first prompt, if a slot is free; the first start takes seconds."""
    with suppress(StudioError):  # The first prompt says what is wrong.
        question = chat_question(request, run_id, asked)
        generation = await run_in_threadpool(build_request, request, question)
        stream = await service_clients.send_generation_request(
            request.app.state.settings, generation.request.model_copy(update={"ids": []})
        )
        try:
            async for _event in _stream_events(stream, generation, asked):
                pass
        finally:
            await stream.close()
    return Response(status_code=204)


def chat_question(request: Request, run_id: int, asked: AnswerRequest | ChatScore) -> Question:
    """Return a question to one of the two models of a run's chat."""
    folder = request.app.state.settings.runs

    def find_model(db: Session) -> ChatModel:
        return chat_models.get_chat_model(
            db, runs.get(db, run_id), folder, asked.side, asked.checkpoint
        )

    return Question(asked, find_model)


async def to_server_events(
    events: AsyncGenerator[dict[str, Any]],
) -> AsyncIterator[ServerSentEvent]:
    """Yield events of an answer as the page reads them, and an error as the last one."""
    try:
        async with aclosing(events):
            async for event in events:
                yield ServerSentEvent(raw_data=json.dumps(event))
    except StudioError as error:
        yield ServerSentEvent(raw_data=json.dumps({"error": _error_fields(error)}))


async def answer_events(request: Request, question: Question) -> AsyncGenerator[dict[str, Any]]:
    """Yield what a model waits for, the pieces of its answer, and how it ended."""
    settings, hub = request.app.state.settings, request.app.state.hub
    generation = await run_in_threadpool(build_request, request, question)
    state: dict[str, Any] = {}
    while not hub.is_closing:
        previous, state = state, await run_in_threadpool(_read_state, request)
        if state != previous:
            yield state
        stream = await service_clients.send_generation_request(settings, generation.request)
        try:
            async for event in _stream_events(stream, generation, question.prompt):
                yield event
        except UnavailableError as error:
            if error.code != NO_SLOT:
                raise
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
        finally:
            await stream.close()


def build_request(request: Request, question: Question, scored: str = "") -> Generation:
    """Find the model and tokenise the prompt; both fail in words before a model is loaded.

    With `scored`, nothing is generated: the tokens of this answer are scored.
    """
    state, asked = request.app.state, question.prompt
    with read_session(state.engine) as db:
        if wait := slot_wait.find_worker_wait(db):
            raise UnavailableError(wait.message, hint="Start one with `studio worker`.")
        model = question.find_model(db)
    options = asked.to_options(model.name, scored)
    start = "" if scored else asked.answer_start
    sent, template_hash = prompts.build_request(
        state.settings, model.served, options, model.template, start
    )
    return Generation(sent, model, template_hash)


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
    stream: ResponseStream, generation: Generation, asked: PromptRequest
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of an answer.

    Raises:
        StudioError: No slot is free, the model cannot answer, or it was silent for too long.

    """
    answer, chunk = _Answer(asked.answer_start), GenerationChunk()
    while chunk.end is None:
        chunk = await stream.read_in_time()
        answer.text += chunk.text
        if chunk.loading:
            yield {"state": "loading"}
        elif chunk.started:
            answer.began_at = time.monotonic()
            yield {"state": "answering", "source": _source_fields(generation, "")}
        elif chunk.text:
            yield {"text": chunk.text}
    source = _source_fields(generation, chunk.end.computed_in)
    yield {"end": _end_fields(answer, chunk.end, asked), "source": source}


def _end_fields(answer: _Answer, end: GenerationEnd, asked: PromptRequest) -> dict[str, Any]:
    return {
        "tokens": end.tokens,
        "seconds": round(time.monotonic() - answer.began_at, 3),
        "is_cut": end.reason == "length",
        "is_right": _is_right(answer, end, asked),
        "computed_in": end.computed_in,
        "calls": [tool_call(call) for call in end.calls],
    }


def _is_right(answer: _Answer, end: GenerationEnd, asked: PromptRequest) -> bool | None:
    """Return whether an answer is the expected one; None for texts, and before functions ran."""
    if asked.is_text or end.calls:
        return None
    return answer_rules.is_correct(answer.text, asked.expected)


def _source_fields(generation: Generation, computed_in: str) -> dict[str, Any]:
    """Return what gives an answer: what the service was sent, and the format it computed in."""
    sent, model = generation.request, generation.model
    return {
        "name": sent.name,
        "base": model.base,
        "run": model.run_id,
        "is_adapter": bool(sent.adapter or sent.lora),
        "step": model.step,
        "rounded_to": model.served.rounded_to,
        "computed_in": computed_in,
        "template": generation.template_hash,
        "seed": sent.seed if sent.temperature > 0 else None,
    }


def _error_fields(error: StudioError) -> dict[str, str]:
    translate = translation.translate
    return {"message": translate(error.message), "hint": translate(error.hint)}
