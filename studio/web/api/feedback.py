"""REST routes of feedback: what people say about answers, and the datasets made of it."""

from datetime import datetime
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from fastapi import APIRouter, Request, Response

from studio.db.feedback import Feedback
from studio.intake.row_formats.schema import make_turn
from studio.services.feedback import feedback, feedback_datasets
from studio.services.feedback.feedback import FeedbackKind, NewFeedback, SaidIn
from studio.web.api import conventions as api
from studio.web.http.deps import DB, Config, ReadDB
from studio.web.http.multipart_upload import read_limits

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/feedback", tags=["feedback"])

MAX_CHARS = 1_000_000
MAX_NAME_CHARS = 300

Text = Annotated[str, Len(0, MAX_CHARS)]
ModelName = Annotated[str, Len(0, MAX_NAME_CHARS)]


class MessageIn(api.Body):
    role: Literal["system", "user", "assistant"]
    content: Text


class FeedbackIn(api.Body):
    """What somebody says about an answer.

    With `label` it is a rating, with `rejected` a preference, and without both a good answer.
    """

    prompt: Annotated[list[MessageIn], Len(1, 1000)]
    """The conversation up to the answer."""
    answer: Text
    """The answer that is rated, the better answer of a preference, or a good answer."""
    rejected: Text | None = None
    """The worse answer to the same prompt."""
    label: bool | None = None
    """Whether the answer is good."""
    said_in: SaidIn = "api"
    """Where it was said."""
    run_id: api.BodyId | None = None
    """The run that it is about."""
    model: ModelName = ""
    """The model that gave the answer, such as `run 12, step 40`; empty if a person wrote it."""
    other_model: ModelName = ""
    """The model that gave the rejected answer."""
    temperature: Annotated[float, Ge(0), Le(100)] | None = None
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] | None = None


class FeedbackOut(api.Out):
    id: int
    kind: FeedbackKind
    """A preference between two answers, a judged answer, or a conversation with a good answer."""
    row: dict[str, Any]
    """The row to train on."""
    said_in: SaidIn
    run_id: int | None
    """Null once the run is deleted."""
    evaluation_id: int | None
    position: int | None
    """The position of the row in the evaluation."""
    model: str
    other_model: str
    temperature: float | None
    seed: int | None
    said_by: str
    created_at: datetime


class SummaryOut(api.Out):
    counts: dict[FeedbackKind, int]
    longer_chosen: float | None
    """The share of preferences whose better answer is the longer one; null without any of different
    lengths."""
    good_ratings: int
    """How many of the judged answers are rated good."""
    min_preferences: int
    """Fewer preferences than this teach little."""


class NewDataset(api.Body):
    kind: FeedbackKind


class FeedbackDatasetOut(api.Out):
    dataset_id: int
    name: str
    version: int | None
    """Null while a task reads a large file."""
    rows: int
    is_new: bool
    """Whether a version was made; not if nothing was said since the last one."""
    chore: int | None


@router.get("")
def newest(
    db: DB, kind: FeedbackKind | None = None, after: api.After = None, limit: api.Limit = 100
) -> api.Listing[FeedbackOut]:
    rows = feedback.newest(db, kind, limit=limit + 1, before=after)
    return api.make_page(rows, limit, [_feedback_out(row) for row in rows])


@router.post("", status_code=api.CREATED)
def add(new: FeedbackIn, db: DB, response: Response) -> FeedbackOut:
    """Keep what you say about an answer; what you said before about the same is replaced."""
    prompt = [make_turn(turn.role, turn.content) for turn in new.prompt]
    fields = new.model_dump(exclude={"prompt"})
    said = feedback.add(db, NewFeedback(prompt=prompt, **fields))
    response.headers["Location"] = f"/api/v1/feedback/{said.id}"
    return _feedback_out(said)


@router.get("/summary")
def summary(db: DB) -> SummaryOut:
    """Return how much there is of each kind, and whether better answers are just longer."""
    told = feedback.summarise(db)
    return SummaryOut(
        counts=dict(told.counts),
        longer_chosen=told.longer_chosen,
        good_ratings=told.good_ratings,
        min_preferences=feedback.MIN_PREFERENCES,
    )


@router.post("/datasets", status_code=api.CREATED)
def make_dataset(
    request: Request, response: Response, new: NewDataset, config: Config, _db: ReadDB
) -> FeedbackDatasetOut:
    """Make a dataset of all feedback of a kind, or a new version of the one there is.

    Returns 201 with a new version, 200 with the current one if nothing was said since, or 202 with
    the task that reads a large file.
    """
    made = feedback_datasets.make(
        request.app.state.engine, config.datasets, new.kind, read_limits(config)
    )
    response.status_code = 202 if made.chore else 201 if made.is_new else 200
    return FeedbackDatasetOut.model_validate(made)


@router.get("/{feedback_id}")
def show(feedback_id: api.Id, db: DB) -> FeedbackOut:
    return _feedback_out(feedback.get(db, feedback_id))


@router.delete("/{feedback_id}", status_code=204)
def delete(feedback_id: api.Id, db: DB) -> None:
    """Take back what was said. Datasets that were made of it keep their rows."""
    feedback.delete(db, feedback_id)


def _feedback_out(said: Feedback) -> FeedbackOut:
    return FeedbackOut.model_validate(said)
