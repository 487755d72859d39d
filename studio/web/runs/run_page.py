"""The page of a run: its tabs, each with an address, and what its buttons do."""

from fastapi import APIRouter

from studio.web.runs import (
    answers_tab,
    benchmarks_section,
    charts_tab,
    details_tab,
    evaluation_tab,
    files_tab,
    judgements_page,
    numerics_tab,
    overview_tab,
    rollouts_tab,
    row_feedback,
    run_actions,
    trackers_section,
)

_PARTS = (
    overview_tab,
    charts_tab,
    answers_tab,
    rollouts_tab,
    evaluation_tab,
    benchmarks_section,
    judgements_page,
    numerics_tab,
    files_tab,
    trackers_section,
    details_tab,
    row_feedback,
    run_actions,
)

router = APIRouter(include_in_schema=False)
router.routes.extend(route for part in _PARTS for route in part.router.routes)
