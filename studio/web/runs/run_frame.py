"""What all tabs of a run share: heading, actions, and where a live page continues."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.tables import Run
from studio.services import recent_ends
from studio.services.datasets import image_addresses
from studio.services.estimates import run_progress
from studio.services.metrics import metrics
from studio.services.queue import queue
from studio.services.runs import continuation, rollouts, runs
from studio.services.workers import workers
from studio.web.forms import choices
from studio.web.rendering.render import page
from studio.web.runs import seen_runs


@dataclass(frozen=True, slots=True)
class Tab:
    """A part of a run's page with an address of its own."""

    name: str
    title: str
    path: str
    """What follows the address of the run."""


TABS = (
    Tab("overview", "Overview", ""),
    Tab("charts", "Charts", "/charts"),
    Tab("answers", "Answers", "/answers"),
    Tab("rollouts", "Scored answers", "/rollouts"),
    Tab("evaluation", "Evaluation", "/evaluation"),
    Tab("numerics", "Numerics", "/numerics"),
    Tab("files", "Files", "/files"),
    Tab("details", "Details", "/details"),
)

_IS_SHOWN: Mapping[str, Callable[[Run], bool]] = {
    "answers": lambda run: run.recipe.writes_text,
    "rollouts": rollouts.keeps_rollouts,
}
"""Tabs that only some runs have."""


def tab_page(
    request: Request,
    db: Session,
    run: Run,
    tab: str,
    /,
    **context: Any,  # noqa: ANN401 -- any template variable
) -> Response:
    """Render a tab with what all tabs show."""
    run_id = run.id or 0
    newest = runs.list_newest_events(db, run_id, limit=1)
    response = page(
        request,
        f"runs/{tab}.html",
        run=run,
        tab=tab,
        tabs=[one for one in TABS if one.name not in _IS_SHOWN or _IS_SHOWN[one.name](run)],
        made=run_progress.measure(run),
        position=queue.position(db, run),
        precisions=choices.precision_options(workers.training_hardware(db)),
        alarm_count=len(runs.list_alarms(db, run_id)),
        ancestors=continuation.ancestors(db, run),
        children=continuation.children(db, run),
        last_metric=metrics.newest_id(db, [run_id]),
        last_event=(newest[0].id or 0) if newest else 0,
        **{"images": image_addresses.of_run(db, run), **context},
    )
    if run.status.is_final:
        seen_runs.mark_seen(request, response, recent_ends.end_key(run))
    return response
