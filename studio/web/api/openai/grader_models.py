"""Ask the models of graders during a request: of endpoints, and of the studio."""

from typing import Any

from anyio import from_thread
from fastapi import Request
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.graders.model_questions import AskModel, ModelQuestion, ModelReply
from studio.graders.schema import Grader
from studio.protocols import grader_judges
from studio.protocols.grader_judges import EndpointJudges
from studio.protocols.inference_service import GenerationRequest
from studio.services.chat import predictions
from studio.services.graders import judges
from studio.services.models import reward_models
from studio.web.api.openai import chat
from studio.web.api.openai.chat_bodies import (
    ChatCompletionRequest,
    JsonSchema,
    ResponseFormat,
    Turn,
)


def ask_for(request: Request, grader: Grader) -> AskModel:
    """Return what asks the models of a grader, from a thread of this request.

    Raises:
        StudioError: the endpoints that the grader asks cannot be read.

    """

    def ask_studio(question: ModelQuestion) -> ModelReply:
        reply: ModelReply = from_thread.run(_ask_studio, request, question)
        return reply

    return grader_judges.ask_models(_endpoint_judges(request, grader), ask_studio)


def _endpoint_judges(request: Request, grader: Grader) -> EndpointJudges:
    asked = [one.model for _path, one in grader_judges.list_model_graders(grader)]
    if not any(map(grader_judges.asks_endpoint, asked)):
        return EndpointJudges([], allow_internal=False)
    with read_session(request.app.state.engine) as db:
        return judges.endpoint_judges(db, request.app.state.settings)


async def _ask_studio(request: Request, question: ModelQuestion) -> ModelReply:
    run_id = grader_judges.reward_run(question.model)
    if run_id is not None:
        return await _ask_reward_model(request, question, run_id)
    return await _ask_chat_model(request, question)


async def _ask_reward_model(request: Request, question: ModelQuestion, run_id: int) -> ModelReply:
    """Return the score of a reward model as the reply that graders read."""
    settings = request.app.state.settings
    row: dict[str, Any] = {"messages": [dict(message) for message in question.messages]}

    def build() -> GenerationRequest:
        with read_session(request.app.state.engine) as db:
            run = reward_models.get_run(db, run_id)
            model = predictions.get_scorer(db, run, settings.runs)
            return predictions.build_request(settings, model, run, row)

    asked = await run_in_threadpool(build)
    end = (await predictions.predict(settings, asked, "score")).end
    score = next(iter(end.scores.values()))
    return grader_judges.reward_reply(question, score, end.tokens)


async def _ask_chat_model(request: Request, question: ModelQuestion) -> ModelReply:
    """Ask a model of the studio, and hold its reply to the JSON that graders read."""
    reply_format = JsonSchema(name="result", schema=dict(question.reply_schema))
    sampling = question.sampling
    response = await chat.answer(
        request,
        ChatCompletionRequest(
            model=question.model,
            messages=[Turn.model_validate(message) for message in question.messages],
            max_completion_tokens=question.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            response_format=ResponseFormat(type="json_schema", json_schema=reply_format),
        ),
    )
    return ModelReply(
        text=response["choices"][0]["message"]["content"] or "",
        model=question.model,
        tokens=response["usage"]["total_tokens"],
    )
