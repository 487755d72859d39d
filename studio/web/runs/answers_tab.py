"""The Answers tab of a run: its answers to each prompt, step by step, and their ratings."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from studio.services.compare import compare
from studio.services.runs import runs
from studio.services.samples import sample_ratings
from studio.web.compare import sample_table
from studio.web.http.deps import DB
from studio.web.rendering.render import page, redirect, referring_page, wants_fragment
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/answers")
def show_answers(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    samples, scores = compare.list_samples(db, [run_id]), sample_ratings.load_scores(db, [run_id])
    return tab_page(
        request,
        db,
        run,
        "answers",
        sample_table=sample_table.table_across_steps(samples, scores),
        rated=sample_ratings.count_rated(db, [run_id]),
    )


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
        return redirect(request, f"{there}#answers" if there else f"/runs/{run_id}/answers")
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
