"""REST routes of a run's sample answers and their ratings."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from studio.db.tables import Sample
from studio.protocols.events import SampleStage
from studio.services.compare import compare
from studio.services.runs import runs
from studio.services.samples import sample_ratings
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Id, Listing, Out
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/runs", tags=["runs"])


SamplePosition = Annotated[int, Path(ge=0, lt=2**31)]


class SampleOut(Out):
    """The model's answer to one validation prompt, at one stage of its run."""

    stage: SampleStage
    step: int
    position: SamplePosition
    """The number of the prompt, used to rate its answer."""
    prompt: str
    reference: str
    """The answer in the dataset."""
    answer: str
    computed_in: str
    """The number format it was computed in, as measured: `float32`, `bfloat16 (nf4)`; empty for
    runs of earlier versions."""
    rating: int | None
    """From 1 to 5; null if not rated. Only answers after training can be rated."""


class NewRating(Body):
    score: int = Field(ge=sample_ratings.MIN_SCORE, le=sample_ratings.MAX_SCORE)
    """From 1, useless, to 5, perfect."""


@router.get("/{run_id}/samples")
def listing(run_id: Id, db: DB) -> Listing[SampleOut]:
    """List the run's sample answers, in the order in which they were generated."""
    runs.get(db, run_id)
    scores = sample_ratings.load_scores(db, [run_id])
    items = [
        _sample_out(sample, scores.get(sample.id or 0))
        for sample in compare.list_samples(db, [run_id])
    ]
    return Listing.complete(items)


@router.put("/{run_id}/samples/{position}/rating")
def rate(run_id: Id, position: SamplePosition, new: NewRating, db: DB) -> SampleOut:
    """Rate an answer given after training. The mean rating is a metric of the run."""
    sample = sample_ratings.get_final_sample(db, run_id, position)
    sample_ratings.rate(db, sample, new.score)
    return _sample_out(sample, new.score)


@router.delete("/{run_id}/samples/{position}/rating", status_code=204)
def forget(run_id: Id, position: int, db: DB) -> None:
    sample_ratings.rate(db, sample_ratings.get_final_sample(db, run_id, position), None)


def _sample_out(sample: Sample, score: int | None) -> SampleOut:
    return SampleOut.model_validate({**sample.model_dump(), "rating": score})
