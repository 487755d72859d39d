"""The box on a run's page in which its model rewrites or scores a text."""

from typing import Annotated

from annotated_types import Len
from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from studio.errors import StudioError
from studio.intake.row_formats.tagged_words import mark_spans, split_words
from studio.web.api.runs import predictions
from studio.web.api.runs.predictions import PredictionIn, Turn
from studio.web.rendering.render import block

router = APIRouter(include_in_schema=False)

Answer = Annotated[str, Form(), Len(0, predictions.MAX_CHARS)]
"""Empty for a text to rewrite, or to give a label to."""
Text = Annotated[str, Form(), Len(1, predictions.MAX_CHARS)]


@router.post("/runs/{run_id}/try")
async def try_it(request: Request, run_id: int, prompt: Text, answer: Answer = "") -> Response:
    """Show what the model makes of a text, or why it makes nothing."""
    turns = [Turn(role="user", content=prompt)]
    if answer:
        turns.append(Turn(role="assistant", content=answer))
    asked = PredictionIn(messages=turns)
    try:
        found = await predictions.ask(request, run_id, asked)
    except StudioError as error:
        return block(request, "runs/try_result.html", "result", error=error)
    steps = [line for line in answer.splitlines() if line.strip()]
    entities = predictions.list_entities(asked, found)
    spans = [(one.start, one.end, one.label) for one in entities]
    return block(
        request,
        "runs/try_result.html",
        "result",
        found=found,
        end=found.end,
        steps=steps,
        entities=entities,
        segments=mark_spans(prompt, spans),
        is_cut=found.outputs == "entities" and len(found.end.tags) < len(split_words(prompt)),
        error=None,
    )
