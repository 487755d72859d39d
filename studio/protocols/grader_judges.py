"""The models that graders ask: endpoints, chat models and reward models of the studio.

In a grader's JSON, `model` is `endpoint:` and the name of an endpoint, `run:` and the number of a
run that trained a reward model, or a name as in `/v1/models`.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from studio.errors import InvalidError, NotFoundError, StudioError, UnavailableError
from studio.graders.grades import GradeError
from studio.graders.model_questions import AskModel, ModelQuestion, ModelReply, build_question
from studio.graders.schema import Grader, LabelModelGrader, ScoreModelGrader, single_graders
from studio.graders.templates import Sample
from studio.protocols import chat_endpoints
from studio.protocols.chat_endpoints import ChatEndpoint
from studio.protocols.endpoint_client import PARALLEL, RETRIES, EndpointClient
from studio.protocols.judging import ModelJudge, RewardJudge
from studio.settings import Settings

ENDPOINT = "endpoint:"
"""Begins the names of models behind endpoints."""
SECRETS = ("endpoints", "judge_key")
"""The secret settings that a process needs to ask endpoints, as jobs hold no keys."""

_REWARD = re.compile(r"run:([1-9]\d{0,17})")

LocalJudge = Annotated[ModelJudge | RewardJudge, Field(discriminator="kind")]

AskTogether = Callable[[Sequence[ModelQuestion]], Sequence[ModelReply | StudioError]]
"""Asks reward models many questions at once; an error is that of its question alone."""


def list_model_graders(grader: Grader) -> list[tuple[str, ScoreModelGrader | LabelModelGrader]]:
    """Return the graders that ask a model, each with its path."""
    return [
        (path, one)
        for path, one in single_graders(grader)
        if isinstance(one, ScoreModelGrader | LabelModelGrader)
    ]


def asks_endpoint(model: str) -> bool:
    return model.startswith(ENDPOINT)


def reward_run(model: str) -> int | None:
    """Return the run whose reward model a name stands for, else None."""
    match = _REWARD.fullmatch(model)
    return int(match[1]) if match else None


def require_reward_type(grader: ScoreModelGrader | LabelModelGrader, path: str) -> None:
    """Refuse a reward model that is asked for a label.

    Raises:
        InvalidError: it gives scores alone.

    """
    if reward_run(grader.model) is not None and isinstance(grader, LabelModelGrader):
        raise InvalidError(
            f"{path}.model: A reward model gives scores, and no labels.",
            hint="Use score_model, or choose another model.",
            param=f"{path}.model",
        )


def reward_reply(question: ModelQuestion, score: float, tokens: int) -> ModelReply:
    """Return the score of a reward model as a reply that graders read.

    Scores of a reward model have no limits: those outside of a grader's range are clipped when the
    reply is read. Without a range, they are squashed to 0 to 1.
    """
    result = score if question.has_range else squash(score)
    return ModelReply(text=json.dumps({"result": result}), model=question.model, tokens=tokens)


def squash(score: float) -> float:
    """Return 1 / (1 + e^-score): how likely the answer is better than one with the score 0.

    So says the model of Bradley and Terry, which reward models are trained by.
    """
    if math.isnan(score):
        return score
    small = math.exp(-abs(score))
    return (1 if score >= 0 else small) / (1 + small)


class EndpointJudges:
    """Asks the models of endpoints. Several threads may ask at once."""

    def __init__(
        self,
        endpoints: Iterable[ChatEndpoint],
        *,
        allow_internal: bool,
        retries: Sequence[float] = RETRIES,
    ) -> None:
        self._clients = {
            one.name: EndpointClient(
                one,
                allow_internal=allow_internal,
                hint="An administrator can change the endpoint on Settings, Secrets.",
                retries=retries,
            )
            for one in endpoints
        }

    def require(self, model: str, param: str = "") -> EndpointClient:
        """Return the client of an endpoint's model.

        Raises:
            NotFoundError: there is no such endpoint.

        """
        name = model.removeprefix(ENDPOINT)
        if name not in self._clients:
            known = ", ".join(f"{ENDPOINT}{one}" for one in self._clients)
            raise NotFoundError(
                f"There is no endpoint named {name[:40]}.",
                hint=f"Use one of these: {known}." if known else "An administrator can add one.",
                param=param,
            )
        return self._clients[name]

    def ask(self, question: ModelQuestion) -> ModelReply:
        """Ask the model of an endpoint.

        Raises:
            StudioError: it cannot be asked.

        """
        reply = self.require(question.model).ask(question.messages, _options(question))
        return ModelReply(text=reply.text, model=question.model, tokens=reply.tokens)


def from_settings(settings: Settings) -> EndpointJudges:
    """Return the judges of settings that hold their secrets, as a task's process has them.

    Raises:
        InvalidError: the list of endpoints is malformed.

    """
    return EndpointJudges(
        chat_endpoints.list_configured(settings), allow_internal=settings.allow_internal_addresses
    )


def ask_models(endpoints: EndpointJudges, ask_other: AskModel | None = None) -> AskModel:
    """Return what asks the models of graders: endpoints, and all others by `ask_other`."""

    def ask(question: ModelQuestion) -> ModelReply:
        if asks_endpoint(question.model):
            return endpoints.ask(question)
        if ask_other is None:
            raise UnavailableError(
                f"{question.model} cannot be asked here.",
                hint=f"Use a model behind an address: {ENDPOINT} and its name.",
            )
        return ask_other(question)

    return ask


@contextmanager
def asking_ahead(
    grader: Grader,
    answers: Iterable[tuple[Sample, object]],
    ask: AskModel,
    ask_together: AskTogether | None = None,
) -> Iterator[AskModel]:
    """Ask about all answers at once; yield what gives the replies.

    Graders grade one answer after the other, and each reply of an endpoint takes seconds: they are
    asked a few questions at a time, and reward models in batches by `ask_together`. Equal questions
    are asked once. Other models are asked when their turn comes.
    """
    graders = [
        one
        for _path, one in list_model_graders(grader)
        if asks_endpoint(one.model) or (ask_together and reward_run(one.model) is not None)
    ]
    asked: dict[str, Future[ModelReply]] = {}
    together: dict[str, ModelQuestion] = {}
    with ThreadPoolExecutor(PARALLEL) as threads:

        def reply(question: ModelQuestion) -> ModelReply:
            known = asked.get(repr(question))
            return known.result() if known else ask(question)

        try:
            for sample, item in answers if graders else ():
                for question in _questions(graders, sample, item):
                    if not asks_endpoint(question.model):
                        together[repr(question)] = question
                    elif repr(question) not in asked:
                        asked[repr(question)] = threads.submit(ask, question)
            if ask_together and together:
                replies = ask_together([*together.values()])
                asked |= dict(zip(together, map(_known, replies), strict=True))
            yield reply
        finally:
            for one in asked.values():
                one.cancel()


def _known(reply: ModelReply | StudioError) -> Future[ModelReply]:
    future: Future[ModelReply] = Future()
    if isinstance(reply, StudioError):
        future.set_exception(reply)
    else:
        future.set_result(reply)
    return future


def _questions(
    graders: Iterable[ScoreModelGrader | LabelModelGrader], sample: Sample, item: object
) -> Iterator[ModelQuestion]:
    for grader in graders:
        try:
            yield build_question(grader, sample, item)
        except GradeError:
            continue  # The grade says why.


def _options(question: ModelQuestion) -> Mapping[str, Any]:
    sampling = question.sampling
    schema = {"name": "result", "strict": True, "schema": dict(question.reply_schema)}
    chosen = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    return {name: value for name, value in chosen.items() if value is not None} | {
        "max_tokens": question.max_tokens,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
