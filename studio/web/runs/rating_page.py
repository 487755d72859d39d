"""Rate a sample answer in place: in a comparison or on its run's page."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from studio.services.runs import runs
from studio.services.samples import sample_ratings
from studio.web.http.deps import DB
from studio.web.rendering.render import page, redirect, referring_page, wants_fragment

router = APIRouter(include_in_schema=False)


@router.post("/samples/{sample_id}/rating")
def rate(
    request: Request,
    sample_id: int,
    db: DB,
    score: Annotated[int, Form()] = 0,
    *,
    blind: Annotated[bool, Form()] = False,
) -> Response:
    """Save a score, or clear it with 0. A blind page learns nothing about the run."""
    sample = sample_ratings.get_rateable_sample(db, sample_id)
    previous = sample_ratings.rate(db, sample, score or None)
    run_id = sample.run_id
    if not wants_fragment(request):
        there = referring_page(request, "")
        return redirect(request, f"{there}#answers" if there else f"/runs/{run_id}")
    return page(
        request,
        "compare/rating.html",
        sample=sample,
        score=score or None,
        before=previous,
        blind=blind,
        run=runs.get(db, run_id),
        rated=sample_ratings.count_rated(db, [run_id]),
    )
