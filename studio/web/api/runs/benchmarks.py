"""REST routes of benchmarks: a run's model and its base model, measured by lm-eval."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from sqlmodel import Session

from studio.db.benchmarks import Benchmark, ScoreSet
from studio.db.states import TaskStatus
from studio.evaluation.benchmarks import DEFAULT_ROWS, MAX_ROWS
from studio.services.evaluations import benchmark_results, benchmarks, evaluations
from studio.services.evaluations.answer_sets import AnswerProgress
from studio.services.evaluations.benchmark_results import BenchmarkMetric, BenchmarkResults
from studio.services.evaluations.benchmarks import BenchmarkRequest
from studio.services.runs import runs
from studio.web.api import conventions as api
from studio.web.api.runs.evaluations import DifferenceOut, FigureOut
from studio.web.http.deps import DB, Config

router = APIRouter(
    route_class=api.ApiRoute, prefix="/api/v1/runs/{run_id}/benchmarks", tags=["evaluations"]
)


class NewBenchmark(api.Body):
    suite: Annotated[str, Field(max_length=100)] = ""
    """A public suite: gsm8k, hellaswag, arc_easy, arc_challenge, mmlu, ifeval, truthfulqa_mc2,
    winogrande, piqa or wikitext."""
    dataset: Annotated[str, Field(max_length=200)] = ""
    """The name of a dataset of conversations or texts, in place of a suite."""
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = DEFAULT_ROWS
    """How many rows: the first ones of a suite; of a dataset the same ones every time."""
    max_new_tokens: Annotated[int, Field(ge=1, le=evaluations.MAX_NEW_TOKENS)] = (
        evaluations.DEFAULT_NEW_TOKENS
    )
    """The length at which answers to rows of a dataset are cut off."""


class MeasuringOut(api.Out):
    """How far a model has come with being measured."""

    model: str
    status: TaskStatus
    progress: float
    error: str
    """Why it failed; empty otherwise."""


class ScoreOut(FigureOut):
    stderr: float | None
    """lm-eval's standard error; null if it gives none."""


class BenchmarkMetricOut(api.Out):
    key: str
    title: str
    unit: str
    better: str
    """`higher` or `lower`."""
    decides: bool
    """Whether the verdict is about it."""
    base: ScoreOut
    tuned: ScoreOut
    comparison: DifferenceOut


class BenchmarkOut(api.Out):
    id: int
    run_id: int
    suite: str
    """Empty for a dataset."""
    dataset: str
    """Empty for a suite."""
    title: str
    rows: int
    """The number of rows that were asked for."""
    base: MeasuringOut
    tuned: MeasuringOut
    verdict: str
    """In one sentence; empty until both models have been measured."""
    signature: str
    """How exactly it was measured: only values with equal signatures compare."""
    computed_in: str
    """The number format of the weights; empty until it is finished."""
    metrics: list[BenchmarkMetricOut]
    created_at: datetime


@router.post("", status_code=api.ACCEPTED)
def measure(run_id: api.Id, new: NewBenchmark, db: DB, config: Config) -> BenchmarkOut:
    """Measure a run's model and its base model with lm-eval, in the background.

    An equal benchmark is returned as it is; parts of it that failed are tried again.
    """
    asked = BenchmarkRequest(**new.model_dump())
    return _benchmark_out(db, benchmarks.create(db, config, run_id, asked))


@router.get("")
def newest(run_id: api.Id, db: DB) -> api.Listing[BenchmarkOut]:
    runs.get(db, run_id)
    found = benchmarks.list_for_run(db, run_id)
    return api.Listing.complete(_benchmark_out(db, benchmark) for benchmark in found)


@router.get("/{benchmark_id}")
def show(run_id: api.Id, benchmark_id: api.Id, db: DB) -> BenchmarkOut:
    return _benchmark_out(db, benchmarks.get(db, run_id, benchmark_id))


@router.delete("/{benchmark_id}", status_code=204)
def delete(run_id: api.Id, benchmark_id: api.Id, db: DB) -> None:
    """Delete a benchmark, and the scores that no other one uses."""
    benchmarks.delete(db, run_id, benchmark_id)


def _benchmark_out(db: Session, benchmark: Benchmark) -> BenchmarkOut:
    results = benchmark_results.load(db, benchmark)
    base, tuned = map(
        _measuring_out,
        benchmarks.load_score_sets(db, benchmark),
        benchmarks.find_progress(db, benchmark),
    )
    return BenchmarkOut(
        **benchmark.model_dump(exclude={"base_id", "tuned_id"}),
        base=base,
        tuned=tuned,
        verdict=results.verdict if results else "",
        signature=results.signature if results else "",
        computed_in=results.computed_in if results else "",
        metrics=[_metric_out(results, one) for one in results.metrics] if results else [],
    )


def _measuring_out(scores: ScoreSet, progress: AnswerProgress) -> MeasuringOut:
    return MeasuringOut(
        model=scores.model,
        status=progress.status,
        progress=progress.share,
        error=progress.message,
    )


def _metric_out(results: BenchmarkResults, result: BenchmarkMetric) -> BenchmarkMetricOut:
    metric = result.metric
    base, tuned = (
        ScoreOut(value=one.value, low=one.low, high=one.high, n=one.n, stderr=stderr)
        for one, stderr in (
            (result.base, result.base_stderr),
            (result.tuned, result.tuned_stderr),
        )
    )
    return BenchmarkMetricOut(
        key=metric.key,
        title=metric.title,
        unit=metric.unit,
        better=metric.better,
        decides=metric.key == results.primary.key,
        base=base,
        tuned=tuned,
        comparison=DifferenceOut.model_validate(result.comparison),
    )
