"""Answers of a chat as a stream of events: what the model waits for, its text, how it ended."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import InvalidError, StudioError, UnavailableError
from studio.evaluation import answer_rules
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.services.chat import chat_models, slot_wait
from studio.services.chat.chat_models import ChatModel, Side
from studio.services.chat.slot_wait import SlotWait
from studio.services.models import loaded_model, service_clients
from studio.services.models.service_clients import ResponseStream
from studio.services.runs import runs
from studio.web.http.event_hub import StreamSlot
from studio.web.i18n import translation

router = APIRouter(include_in_schema=False)

RETRY_SECONDS = 1.0
"""How often to ask for a slot while none is free."""

MAX_MESSAGE_CHARS = 1_000_000
"""Far more than a context holds; a longer prompt is refused by its number of tokens."""

MAX_SEED = 2**53 - 1
"""The largest integer that scripts of a page keep exactly."""

NO_SLOT = "no_free_slot"

ALTERNATIVES = 5
"""How many of the likeliest tokens are wanted in the place of each token that is scored."""


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Len(0, MAX_MESSAGE_CHARS)]


class SamplingOptions(BaseModel):
    """How an answer is generated. Everywhere the same defaults: what is most likely."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Ge(0), Le(2)] = 0
    top_p: Annotated[float, Gt(0), Le(1)] = 1
    max_tokens: Annotated[int, Ge(1), Le(4096)] = 256
    seed: Annotated[int, Ge(0), Le(MAX_SEED)] | None = None
    """If it is None and tokens are drawn at random, the studio chooses one."""
    stop: Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 4)] = []
    """Texts that end an answer and are not part of it."""


class PromptRequest(SamplingOptions):
    """What a model is asked."""

    messages: Annotated[list[ChatMessage], Len(1, 1000)]
    is_text: bool = False
    """Whether the last message is a text to continue, without a chat template."""
    expected: Annotated[str, Len(0, MAX_MESSAGE_CHARS)] = ""
    answer_start: Annotated[str, Len(0, MAX_MESSAGE_CHARS)] = ""
    """The beginning of an answer that was cut off, which the model continues."""

    @property
    def row(self) -> dict[str, Any]:
        """The prompt as the tokenizer service takes it."""
        if self.is_text:
            return {"text": self.messages[-1].content}
        return {"messages": [message.model_dump() for message in self.messages]}

    def with_answer(self, answer: str) -> dict[str, Any]:
        """Return the conversation with an answer, as the tokenizer service takes it."""
        return {"messages": [*self.row["messages"], {"role": "assistant", "content": answer}]}

    @property
    def options(self) -> GenerationRequest:
        seed = self.seed
        if seed is None and self.temperature > 0:
            seed = secrets.randbelow(2**32)
        return GenerationRequest(
            model="",
            ids=[],
            stops=[],
            stop=self.stop,
            most=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
            is_turn=not self.is_text and not self.answer_start,
        )


class ChatSide(BaseModel):
    """Which of the two models of a run's chat is meant."""

    side: Side
    checkpoint: Annotated[int, Ge(0), Le(10**12)] | None = None


class AnswerRequest(PromptRequest, ChatSide):
    """What one of the two models of a run's chat is asked."""


class ScoredAnswer(PromptRequest):
    """A conversation, and an answer to it whose tokens are scored."""

    answer: Annotated[str, Len(1, MAX_MESSAGE_CHARS)]


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
    async for event in stream_answer(request, chat_question(request, run_id, asked)):
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


async def stream_answer(request: Request, question: Question) -> AsyncIterator[ServerSentEvent]:
    """Stream what a model waits for, its answer, and how it ended, or the error."""
    try:
        async for event in _answer_events(request, question):
            yield ServerSentEvent(raw_data=json.dumps(event, ensure_ascii=False))
    except StudioError as error:
        yield ServerSentEvent(raw_data=json.dumps({"error": _error_fields(error)}))


async def _answer_events(request: Request, question: Question) -> AsyncIterator[dict[str, Any]]:
    """Wait for a slot if there is none, then yield the events of an answer."""
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
    if not asked.messages[-1].content.strip():
        raise InvalidError("The prompt is empty.", hint="Write something first.")
    with read_session(state.engine) as db:
        if wait := slot_wait.find_worker_wait(db):
            raise UnavailableError(wait.message, hint="Start one with `studio worker`.")
        model = question.find_model(db)
    row = TokenizerRequest(
        kind="answer" if scored else "prompt",
        model=model.served.folder,
        row=asked.with_answer(scored) if scored else asked.row,
        chat_template=model.template,
        answer_start="" if scored else asked.answer_start,
    )
    prompt = service_clients.render_prompt(state.settings, row)
    sent = model.served.fill_in(asked.options, model.name, prompt)
    if scored:
        of_answer = {"most": 0, "scored_from": prompt.places[0], "top_logprobs": ALTERNATIVES}
        sent = sent.model_copy(update=of_answer)
    return Generation(sent, model, prompt.template_hash)


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
        "is_right": None if asked.is_text else answer_rules.is_correct(answer.text, asked.expected),
        "computed_in": end.computed_in,
    }


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
