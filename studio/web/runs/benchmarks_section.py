"""The benchmarks of a run on its Evaluation tab: both models, measured by lm-eval."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from studio.db.benchmarks import Benchmark
from studio.db.tables import Run
from studio.evaluation.benchmarks import DEFAULT_ROWS, MAX_ROWS, SUITES
from studio.services.datasets import datasets
from studio.services.evaluations import benchmark_results, benchmarks, evaluations
from studio.services.evaluations.benchmarks import BenchmarkRequest
from studio.services.runs import runs
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, redirect

router = APIRouter(include_in_schema=False)


class BenchmarkForm(BaseModel):
    """The form of a benchmark as it is posted."""

    source: Annotated[str, Field(max_length=210)]
    """`suite:` or `dataset:`, and its name."""
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = DEFAULT_ROWS
    max_new_tokens: Annotated[int, Field(ge=1, le=evaluations.MAX_NEW_TOKENS)] = (
        evaluations.DEFAULT_NEW_TOKENS
    )


@router.post("/runs/{run_id}/benchmarks")
def measure(
    request: Request, run_id: int, db: DB, config: Config, posted: Annotated[BenchmarkForm, Form()]
) -> Response:
    kind, _, name = posted.source.partition(":")
    asked = BenchmarkRequest(
        suite=name if kind == "suite" else "",
        dataset=name if kind == "dataset" else "",
        rows=posted.rows,
        max_new_tokens=posted.max_new_tokens,
    )
    benchmarks.create(db, config, run_id, asked)
    return redirect(request, _address(run_id))


@router.post("/runs/{run_id}/benchmarks/{benchmark_id}/delete")
def delete(request: Request, run_id: int, benchmark_id: int, db: DB) -> Response:
    benchmarks.delete(db, run_id, benchmark_id)
    return redirect(request, _address(run_id))


@router.get("/runs/{run_id}/parts/benchmarks")
def refresh_benchmarks(request: Request, run_id: int, db: DB) -> Response:
    """Return the list of benchmarks, which changes while models are measured."""
    run = runs.get(db, run_id)
    measured = list_measured(db, run)
    return block(request, "runs/evaluation.html", "benchmarks", run=run, measured=measured)


def context(db: Session, run: Run) -> dict[str, Any]:
    """Return what the section shows."""
    return {
        "measured": list_measured(db, run),
        "benchmark_refusal": benchmarks.refusal(run),
        "suites": SUITES.values(),
        "suite_refusal": benchmarks.suite_refusal(),
        "benchmark_datasets": datasets.list_with_rows(db, benchmarks.READABLE),
        "benchmark_defaults": BenchmarkRequest(),
        "benchmark_rows": MAX_ROWS,
    }


def list_measured(db: Session, run: Run) -> list[dict[str, Any]]:
    """Return the benchmarks of a run with how far each has come, and what it has found."""
    return [_measured(db, benchmark) for benchmark in benchmarks.list_for_run(db, run.id or 0)]


def _measured(db: Session, benchmark: Benchmark) -> dict[str, Any]:
    sets = benchmarks.load_score_sets(db, benchmark)
    progress = benchmarks.find_progress(db, benchmark)
    return {
        "benchmark": benchmark,
        "sides": list(zip(sets, progress, strict=True)),
        "is_going": any(not one.status.is_final for one in progress),
        "max_new_tokens": sets[0].made_by["source"].get("max_new_tokens"),
        "results": benchmark_results.load(db, benchmark),
    }


def _address(run_id: int) -> str:
    return f"/runs/{run_id}/evaluation#benchmarks"
