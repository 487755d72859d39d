"""Benchmark a run: lm-eval measures its model and its base model on a suite or a dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from sqlmodel import Session, col, select

from studio.db.benchmarks import Benchmark, ScoreSet
from studio.db.tables import Run
from studio.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from studio.evaluation.benchmarks import DEFAULT_ROWS, SUITES
from studio.intake.detection.row_shapes import KIND_NAMES
from studio.protocols.benchmarks import BenchmarkJob, RowsSource, SuiteSource
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import PromptTokens
from studio.services.datasets import datasets, versions
from studio.services.evaluations import evaluations, score_sets
from studio.services.evaluations.answer_sets import AnswerProgress
from studio.services.models import served_models
from studio.services.models.served_models import ServedModel
from studio.services.runs import runs
from studio.settings import Settings

READABLE = ("conversation", "text", "task")
"""Kinds of rows that have something to compare answers with."""

Refusal = tuple[str, str]
"""Why something cannot be done, and what to do; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRequest:
    """What to measure: either a public suite or a dataset."""

    suite: str = ""
    dataset: str = ""
    rows: int = DEFAULT_ROWS
    max_new_tokens: int = evaluations.DEFAULT_NEW_TOKENS
    """For a dataset; a suite has limits of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The rows to ask."""

    title: str
    identity: Mapping[str, Any]
    job: SuiteSource | RowsSource


def create(db: Session, settings: Settings, run_id: int, request: BenchmarkRequest) -> Benchmark:
    """Measure a run's model and its base model; an equal benchmark is returned as it is.

    Raises:
        ConflictError: the run has no model, or one that lm-eval cannot measure.
        InvalidError: neither a suite nor a dataset is named, or both, or one that cannot be asked.
        NotFoundError: there is no such suite or dataset, or files of the run are gone.
        UnavailableError: lm-eval is not installed, or a suite cannot be downloaded.

    """
    run = runs.get(db, run_id)
    folder = RunDir(settings.runs / str(run_id))
    _require_measurable(run, folder)
    source = _choose_source(db, settings, request)
    base = _score_set(db, run, served_models.for_base(run, folder), "base", source)
    tuned = _score_set(db, run, served_models.for_result(run, folder), "tuned", source)
    same = select(Benchmark).where(
        Benchmark.run_id == run_id, Benchmark.base_id == base.id, Benchmark.tuned_id == tuned.id
    )
    if existing := db.exec(same).first():
        return existing
    benchmark = Benchmark(
        run_id=run_id,
        suite=request.suite,
        dataset=request.dataset,
        title=source.title,
        rows=request.rows,
        base_id=base.id or 0,
        tuned_id=tuned.id or 0,
    )
    db.add(benchmark)
    db.flush()
    return benchmark


def get(db: Session, run_id: int, benchmark_id: int) -> Benchmark:
    benchmark = db.get(Benchmark, benchmark_id)
    if benchmark is None or benchmark.run_id != run_id:
        raise NotFoundError(
            f"Run {run_id} has no benchmark {benchmark_id}.", hint="It may have been deleted."
        )
    return benchmark


def list_for_run(db: Session, run_id: int) -> Sequence[Benchmark]:
    """Return the benchmarks of a run, newest first."""
    query = select(Benchmark).where(Benchmark.run_id == run_id)
    return db.exec(query.order_by(col(Benchmark.id).desc())).all()


def delete(db: Session, run_id: int, benchmark_id: int) -> None:
    """Delete a benchmark, and the scores that no other one uses."""
    db.delete(get(db, run_id, benchmark_id))
    db.flush()
    score_sets.delete_unused(db)


def load_score_sets(db: Session, benchmark: Benchmark) -> tuple[ScoreSet, ScoreSet]:
    """Return the scores of the base model and of the run's model."""
    return db.get_one(ScoreSet, benchmark.base_id), db.get_one(ScoreSet, benchmark.tuned_id)


def find_progress(db: Session, benchmark: Benchmark) -> tuple[AnswerProgress, AnswerProgress]:
    """Return how far the base model and the run's model have come."""
    base, tuned = load_score_sets(db, benchmark)
    return score_sets.find_progress(db, base), score_sets.find_progress(db, tuned)


def refusal(run: Run) -> Refusal:
    """Return why a run cannot be measured, and what to do; empty if it can as far as known."""
    if any(problem := evaluations.refusal(run)):
        return problem
    if not run.recipe.writes_text:
        return (
            "The model of this run reads text and writes none.",
            "Benchmarks are for models that write. Evaluate it on a dataset instead.",
        )
    if run.recipe.outputs == "rewrite":
        return (
            "The model of this run rewrites texts; benchmarks are for models that continue them.",
            "Evaluate it on a dataset instead.",
        )
    return missing_package()


def missing_package() -> Refusal:
    """Return what is not installed, and how to install it; empty if nothing is missing."""
    if find_spec("lm_eval") is None:
        return (
            "lm-eval is not installed, which does the measuring.",
            "Install it where the studio runs: pip install 'mantissa-studio[benchmarks]'",
        )
    return "", ""


def suite_refusal() -> Refusal:
    """Return why public suites cannot be downloaded; empty if they can as far as known."""
    from huggingface_hub import is_offline_mode  # noqa: PLC0415 -- heavy import

    if is_offline_mode():
        return (
            "Public suites are downloaded from the hub, and this studio is in offline mode.",
            "HF_HUB_OFFLINE is set where it runs. Datasets of this studio can be measured.",
        )
    return "", ""


def _require_measurable(run: Run, folder: RunDir) -> None:
    evaluations.require_model(run, folder)
    message, hint = missing_package()
    if message:
        raise UnavailableError(message, hint=hint)
    message, hint = refusal(run)
    if message:
        raise ConflictError(message, hint=hint)
    if served_models.read_job_spec(run, folder).code:
        raise ConflictError(
            "This model runs code of its own, and lm-eval is not allowed to run it.",
            hint="Evaluate it on a dataset instead.",
        )


def _choose_source(db: Session, settings: Settings, request: BenchmarkRequest) -> _Source:
    if bool(request.suite) is bool(request.dataset):
        raise InvalidError(
            "A benchmark needs either a suite or a dataset.",
            hint=f"Suites: {', '.join(SUITES)}.",
            param="suite",
        )
    if request.suite:
        return _suite_source(request)
    return _dataset_source(db, settings, request)


def _suite_source(request: BenchmarkRequest) -> _Source:
    suite = SUITES.get(request.suite)
    if suite is None:
        raise InvalidError(
            f"There is no suite {request.suite}.",
            hint=f"Choose one of {', '.join(SUITES)}.",
            param="suite",
        )
    message, hint = suite_refusal()
    if message:
        raise UnavailableError(message, hint=hint)
    job = SuiteSource(suite=suite.name, rows=request.rows)
    return _Source(title=suite.title, identity=job.model_dump(), job=job)


def _dataset_source(db: Session, settings: Settings, request: BenchmarkRequest) -> _Source:
    version = versions.require(db, request.dataset)
    if version.kind not in READABLE:
        kind = KIND_NAMES[version.kind]
        raise InvalidError(
            f"The rows of {request.dataset} have no answers to compare with: they are {kind}.",
            hint="Choose a dataset of conversations or texts.",
            param="dataset",
        )
    file, _validation = versions.row_files(settings.datasets, version)
    job = RowsSource(file=file, rows=request.rows, max_new_tokens=request.max_new_tokens)
    return _Source(
        title=f"{datasets.get(db, version.dataset_id).name}, version {version.number}",
        identity={**job.model_dump(exclude={"file"}), "sha256": version.sha256},
        job=job,
    )


def _score_set(db: Session, run: Run, served: ServedModel, side: str, source: _Source) -> ScoreSet:
    name = run.recipe.base_model if side == "base" else f"run {run.id}"
    blank = GenerationRequest(model="", ids=[], stops=[])
    job = BenchmarkJob(
        about=f"{name} on {source.title}",
        score_set=0,
        model=served.fill_in(blank, name, PromptTokens(ids=[], stops=[])),
        chat_template=run.recipe.data.chat_template,
        source=source.job,
    )
    return score_sets.get_or_create(db, name, served, job, source.identity)
