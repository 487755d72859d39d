"""REST route for what a run's model makes of a text, if it does not hold conversations."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from annotated_types import Len
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.db.tables import Run
from studio.schemas.field_docs import FieldDocs
from studio.services.chat import neighbours, predictions
from studio.services.chat.neighbours import SearchedTexts
from studio.services.chat.predictions import Prediction
from studio.services.models.served_models import ServedModel
from studio.services.runs import runs
from studio.web.api import conventions as api

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/runs", tags=["runs"])

MAX_CHARS = 1_000_000
"""Far more than a model reads; a longer text is truncated as in training."""


class Turn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Len(1, MAX_CHARS)]


class PredictionIn(FieldDocs, BaseModel):
    """What the model reads."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[list[Turn], Len(1, 1000)]
    """A conversation; a reward model scores its last answer, a process reward model each of its
    lines, and a reranker how well it matches what comes before; others need none."""


class EntityOut(api.Out):
    """An entity in the text."""

    start: int
    """The index of its first character in the text: the contents of the messages, with a line break
    between them."""
    end: int
    """The index after its last character."""
    label: str
    score: float
    """The mean of the probabilities that the model gives the tags of its words."""
    text: str


class NeighbourOut(api.Out):
    """A validation text that is similar to the text."""

    text: str
    similarity: float
    """The cosine of their vectors."""
    before: float | None
    """That of their vectors by the base model; null if that has been deleted."""


class PredictionOut(api.Out):
    scores: dict[str, float]
    """What the model gives: the probability of each label, each number in the units of the data, or
    the one `score` of a reward model, or the `relevance` of a reranker; empty if it writes."""
    labels: list[str]
    """The labels that a classifier gives: the most probable one, or, if texts may have several, all
    above its threshold."""
    steps: list[float]
    """For each line of the answer, the probability that it is right. Lines beyond the maximum
    length are not read."""
    entities: list[EntityOut]
    """The entities that the model finds in the text. Words beyond the maximum length are not read,
    and belong to none."""
    neighbours: list[NeighbourOut]
    """For a model that gives vectors: the most similar texts of the first 200 validation rows."""
    answer: str
    """What the model writes, if it was trained to rewrite texts."""
    tokens: int
    """How many tokens it read, or wrote."""
    computed_in: str
    """The number format it computed in; scores themselves are always computed in float32."""


@router.post("/{run_id}/predict")
async def predict(request: Request, run_id: api.Id, asked: PredictionIn) -> PredictionOut:
    """Let the model of a run read a conversation, and rewrite or score it.

    It may have to be loaded first.
    """
    found = await ask(request, run_id, asked)
    return PredictionOut(
        scores=found.end.scores,
        labels=found.end.labels,
        steps=found.end.steps,
        entities=list_entities(asked, found),
        neighbours=[NeighbourOut(**asdict(one)) for one in found.neighbours],
        answer=found.answer,
        tokens=found.end.tokens,
        computed_in=found.end.computed_in,
    )


def list_entities(asked: PredictionIn, found: Prediction) -> list[EntityOut]:
    """Return the entities that a model found, if that is what it does."""
    text = predictions.read_text(asked.model_dump()["messages"])
    return [
        EntityOut(**asdict(one), text=text[one.start : one.end])
        for one in predictions.list_entities(text, found.end.tags)
    ]


async def ask(request: Request, run_id: int, asked: PredictionIn) -> Prediction:
    """Return what the model of a run makes of a conversation."""
    settings = request.app.state.settings
    row: dict[str, Any] = asked.model_dump()

    def load() -> tuple[Run, ServedModel, SearchedTexts | None]:
        with read_session(request.app.state.engine) as db:
            run = runs.get(db, run_id)
            model = predictions.get_scorer(db, run, settings.runs)
            return run, model, neighbours.load(db, settings, run) if run.recipe.vectors else None

    run, model, texts = await run_in_threadpool(load)
    if texts is not None:
        return await predictions.find_similar(settings, texts, row)
    if run.recipe.outputs == "relevance":
        return await predictions.compare(settings, run, row)
    reading = await run_in_threadpool(predictions.build_request, settings, model, run, row)
    return await predictions.predict(settings, reading, run.recipe.outputs)
