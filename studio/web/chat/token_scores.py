"""How likely a model finds each token of an answer: its own, or the expected one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Le, Len
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from studio.errors import InvalidError, StudioError
from studio.protocols.inference_service import GenerationRequest, TokenScore
from studio.services.models import service_clients
from studio.settings import Settings
from studio.web.chat import answer_stream
from studio.web.chat.answer_stream import ChatScore, Question
from studio.web.chat.prompt_requests import ALTERNATIVES, ScoredAnswer
from studio.web.rendering.render import block

router = APIRouter(include_in_schema=False)

_LEAST_LIKELY = (0.5, 0.2, 0.05, 0.01)
"""Below each of these probabilities a token is marked more strongly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedToken:
    """A token as the page shows it."""

    text: str
    probability: float
    mark: int
    """From 0 for a likely token to 4 for a very unlikely one."""
    others: list[tuple[str, float]]
    """The likeliest tokens in its place, with their probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScore:
    tokens: list[MarkedToken]
    mean_nats: float
    """Mean negative log-likelihood of a token: how surprised the model is."""

    @property
    def least_likely(self) -> MarkedToken:
        return min(self.tokens, key=lambda token: token.probability)


class GivenText(BaseModel):
    text: Annotated[str, Len(0, 100)]
    logprob: Annotated[float, Le(0)]


class GivenToken(GivenText):
    """A token of an answer that came with its probabilities."""

    top: Annotated[list[GivenText], Len(0, ALTERNATIVES)] = []


@router.post("/runs/{run_id}/chat/scores")
async def score(request: Request, run_id: int, asked: ChatScore) -> Response:
    """Show how likely the base model or the run's model finds the tokens of an answer."""
    return await show_scores(request, answer_stream.chat_question(request, run_id, asked), asked)


async def show_scores(request: Request, question: Question, asked: ScoredAnswer) -> Response:
    """Show the tokens of an answer and of the expected one, as a model expects them."""
    scores: dict[str, AnswerScore | None] = {}
    error: StudioError | None = None
    try:
        for name, text in (("answer", asked.answer), ("expected", asked.expected)):
            if text.strip() and (name == "answer" or text != asked.answer):
                scores[name] = await _score(request, question, text)
    except StudioError as problem:
        error = problem
    return block(request, "chat/token_scores.html", "scores", scores=scores, error=error)


def show_given_scores(request: Request, tokens: Sequence[GivenToken]) -> Response:
    """Show the tokens of an answer that came with their probabilities."""
    if not tokens:
        error = InvalidError(
            "This endpoint gave no probabilities with its answer.", hint="Ask it again."
        )
        return block(request, "chat/token_scores.html", "scores", scores={}, error=error)
    scores = {"answer": _summarise(tokens)}
    return block(request, "chat/token_scores.html", "scores", scores=scores, error=None)


async def _score(request: Request, question: Question, answer: str) -> AnswerScore:
    """Score an answer after the conversation before it.

    Raises:
        InvalidError: the answer has no tokens, or the model continues texts.
        UnavailableError: no slot is free, or the model was silent for too long.

    """
    if question.prompt.is_text:
        raise InvalidError("Only answers of conversations are scored.", hint="Choose Chat.")
    settings = request.app.state.settings
    generation = await run_in_threadpool(answer_stream.build_request, request, question, answer)
    tokens = await _read_tokens(settings, generation.request)
    if not tokens:
        raise InvalidError("The answer has no tokens.", hint="Choose another answer.")
    return _summarise(tokens)


def _summarise(tokens: Sequence[TokenScore | GivenToken]) -> AnswerScore:
    nats = [-token.logprob for token in tokens if token.logprob is not None]
    return AnswerScore(tokens=[*map(_mark, tokens)], mean_nats=sum(nats) / max(len(nats), 1))


async def _read_tokens(settings: Settings, sent: GenerationRequest) -> list[TokenScore]:
    stream = await service_clients.send_generation_request(settings, sent)
    tokens: list[TokenScore] = []
    try:
        while (chunk := await stream.read_in_time()).end is None:
            tokens += chunk.tokens
    finally:
        await stream.close()
    return tokens


def _mark(token: TokenScore | GivenToken) -> MarkedToken:
    probability = math.exp(token.logprob) if token.logprob is not None else 1.0
    return MarkedToken(
        text=token.text,
        probability=probability,
        mark=sum(probability < least for least in _LEAST_LIKELY),
        others=[
            (other.text, math.exp(other.logprob))
            for other in token.top
            if other.logprob is not None and other.text != token.text
        ],
    )
