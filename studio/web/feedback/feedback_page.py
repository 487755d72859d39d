"""The page of feedback: its rows, what to know before training on them, and their datasets."""

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from studio.services.datasets import versions
from studio.services.feedback import feedback, feedback_datasets
from studio.services.feedback.feedback import FeedbackKind
from studio.web.http.deps import DB, Config, ReadDB
from studio.web.http.multipart_upload import read_limits
from studio.web.rendering.render import page, redirect, referring_page

router = APIRouter(prefix="/feedback", include_in_schema=False)

PAGE_ROWS = 20

TITLES: Mapping[FeedbackKind, str] = {
    "preference": "Preferences",
    "judged": "Ratings",
    "conversation": "Good answers",
}
PURPOSES: Mapping[FeedbackKind, str] = {
    "preference": "Two answers to the same prompt, of which somebody preferred one. "
    "DPO trains a model to give answers like the preferred ones.",
    "judged": "Answers that somebody rated good or bad. KTO trains a model on both.",
    "conversation": "Prompts with an answer that is right. "
    "Supervised fine-tuning trains a model to give it.",
}
"""What the rows of each kind are, and what they are for."""

PLACES = {
    "api": "said by a program",
    "chat": "said in a chat",
    "playground": "said in the playground",
    "evaluation": "said in an evaluation",
    "sample": "said about a sample answer",
}


class FeedbackQuery(BaseModel):
    """The query parameters of the page."""

    model_config = ConfigDict(extra="ignore")

    kind: FeedbackKind | None = None
    """The kind to list; by default the first of which there are rows."""
    after: int | None = Field(default=None, ge=1, lt=2**63)
    told: Literal["", "made", "same"] = ""
    """What came of the press that made a dataset."""


class DatasetForm(BaseModel):
    """Which feedback to make a dataset of, as it is posted."""

    kind: FeedbackKind


@router.get("")
def show(request: Request, db: DB, query: Annotated[FeedbackQuery, Query()]) -> Response:
    summary = feedback.summarise(db)
    filled = [one for one, count in summary.counts.items() if count]
    kind = query.kind or (filled or list(summary.counts))[0]
    rows = feedback.newest(db, kind, limit=PAGE_ROWS + 1, before=query.after)
    dataset = feedback_datasets.find(db, kind)
    return page(
        request,
        "feedback/list.html",
        kind=kind,
        query=query,
        titles=TITLES,
        purpose=PURPOSES[kind],
        places=PLACES,
        summary=summary,
        least=feedback.MIN_PREFERENCES,
        rows=rows[:PAGE_ROWS],
        next_after=rows[PAGE_ROWS - 1].id if len(rows) > PAGE_ROWS else None,
        dataset=dataset,
        version=versions.current(db, dataset) if dataset else None,
        method=feedback_datasets.METHODS[kind],
    )


@router.post("/datasets")
def make_dataset(
    request: Request, _db: ReadDB, config: Config, asked: Annotated[DatasetForm, Form()]
) -> Response:
    """Make a dataset of all feedback of a kind, or a new version of the one there is."""
    made = feedback_datasets.make(
        request.app.state.engine, config.datasets, asked.kind, read_limits(config)
    )
    if made.version is None:
        return redirect(request, f"/datasets/{made.dataset_id}")
    told = "made" if made.is_new else "same"
    return redirect(request, f"/feedback?kind={asked.kind}&told={told}")


@router.post("/{feedback_id}/delete")
def delete(request: Request, feedback_id: Annotated[int, Path(ge=1, lt=2**63)], db: DB) -> Response:
    kind = feedback.get(db, feedback_id).kind
    feedback.delete(db, feedback_id)
    return redirect(request, referring_page(request, f"/feedback?kind={kind}"))
