"""The Overview tab of a run: progress, result, live figures and answers."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.protocols.run_dir import RunDir
from studio.recipe.dotted_keys import flatten
from studio.services.compare import compare
from studio.services.datasets import image_addresses
from studio.services.estimates import run_progress
from studio.services.evaluations import evaluation_results, evaluations
from studio.services.metrics import metrics
from studio.services.queue import overview
from studio.services.results import (
    entity_results,
    improvements,
    label_results,
    number_results,
    run_verdict,
)
from studio.services.results.improvements import Improvement
from studio.services.runs import attempts, failure_report, rollouts, runs
from studio.services.samples.sample_diff import AnswerScore
from studio.web.compare import sample_table
from studio.web.compare.sample_table import Cell
from studio.web.hardware import hardware_page
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block
from studio.web.runs import charts_tab, tiles
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)

SHOWN_ANSWERS = 6
"""How many prompts this tab shows; the Answers tab has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAnswer:
    """The answer to one prompt at one step."""

    prompt: str
    expected: str
    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAnswers:
    """The answers at one of the steps at which the model was asked."""

    headings: list[str]
    """The steps, from before training to the newest."""
    shown: int
    """Which of them is shown."""
    tallies: list[AnswerScore]
    rows: list[LiveAnswer]
    total: int

    @property
    def is_newest(self) -> bool:
        return self.shown == len(self.headings) - 1


@router.get("/runs/{run_id}")
def show(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    folder = RunDir(config.runs / str(run.id))
    plots = charts_tab.list_plots(run, metrics.list_keys(db, [run_id]))
    return tab_page(
        request,
        db,
        run,
        "overview",
        wait=overview.estimate_wait(db, run),
        shrunk=attempts.list_shrinks(db, run_id),
        plots=plots[:1],
        live_tiles=tiles.list_tiles(db, run),
        answers=_load_answers(db, run_id),
        label_results=label_results.load(run, folder),
        number_report=number_results.load(run, folder),
        entity_report=entity_results.load(run, folder),
        strip=hardware_page.strip_for_run(db, run),
        **_result_context(db, run),
        **_failure_context(db, run, folder),
    )


@router.get("/runs/{run_id}/parts/answers")
def answers_block(
    request: Request, run_id: int, db: DB, at: int | None = None, of: int = 0
) -> Response:
    """Show the answers at a step. A viewer at the newest of `of` steps follows to newer ones."""
    run = runs.get(db, run_id)
    is_newest = at is None or at >= of - 1
    answers = _load_answers(db, run_id, None if is_newest else at)
    images = image_addresses.of_run(db, run)
    return block(request, "runs/overview.html", "answers", run=run, answers=answers, images=images)


@router.get("/runs/{run_id}/parts/wait")
def wait_block(request: Request, run_id: int, db: DB) -> Response:
    """Show why a run waits; empty once it has started."""
    run = runs.get(db, run_id)
    wait = overview.estimate_wait(db, run)
    return block(request, "runs/overview.html", "wait", run=run, wait=wait)


@router.get("/runs/{run_id}/row")
def row_block(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    return block(request, "runs/summary_row.html", "row", run=run, progress_of=run_progress.measure)


def _load_answers(db: Session, run_id: int, at: int | None = None) -> LiveAnswers:
    table = sample_table.table_across_steps(compare.list_samples(db, [run_id]), {})
    newest = max(0, len(table.headings) - 1)
    shown = newest if at is None else min(max(at, 0), newest)
    rows = [
        LiveAnswer(prompt=row.prompt, expected=row.expected, cell=row.cells[shown])
        for row in table.rows[:SHOWN_ANSWERS]
    ]
    return LiveAnswers(
        headings=table.headings, shown=shown, tallies=table.tallies, rows=rows, total=table.total
    )


def _result_context(db: Session, run: Run) -> dict[str, Any]:
    """Return what a run that succeeded achieved, and what to try next."""
    if run.status is not RunStatus.SUCCEEDED:
        return {"verdict": None}
    verdict = run_verdict.load_verdict(db, run)
    found = improvements.list_improvements(db, run, verdict)
    return {
        "verdict": verdict,
        "improvements": [(one, _address(run, one)) for one in found],
        "evaluation": evaluation_results.load_newest(db, run.id or 0),
        "evaluation_progress": evaluations.find_share(db, run.id or 0),
    }


def _address(run: Run, improvement: Improvement) -> str:
    """Return the page on which an improvement begins, filled in."""
    if improvement.kind == "data":
        return "/datasets"
    page = "/sweeps/new" if improvement.kind == "sweep" else "/new"
    values = {"from": f"run:{run.id}", **flatten(improvement.change)}
    return f"{page}?" + urlencode(values, safe=":")


def _failure_context(db: DB, run: Run, folder: RunDir) -> dict[str, Any]:
    """Return the explanation of a failure, and its possible fixes."""
    report = failure_report.explain(db, run)
    if report is None:
        return {"why": None}
    lines = failure_report.log_tail(folder)
    all_fixes = failure_report.list_fixes(db, run, report)
    return {
        "why": report,
        "last_lines": lines,
        "repairs": [fix for fix in all_fixes if not fix.swap],
        "swaps": {
            fix.swap: [other for other in all_fixes if other.swap == fix.swap] for fix in all_fixes
        },
        "about_answers": rollouts.ALARMS if rollouts.count_bytes(folder) else (),
        "report": failure_report.render_markdown(run, report, lines),
    }
