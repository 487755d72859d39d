"""The scores of a model on a suite or rows: what they depend on, and the task that measures them.

Two benchmarks of the same model on the same rows share one set, so a base model is measured once
for all the runs that start from it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from sqlmodel import Session, col, select

from studio.db.benchmarks import Benchmark, ScoreSet
from studio.db.tasks import Task
from studio.protocols.benchmarks import BenchmarkJob, BenchmarkResult
from studio.services.evaluations import answer_sets
from studio.services.evaluations.answer_sets import AnswerProgress
from studio.services.models.served_models import ServedModel
from studio.services.tasks import tasks

KIND = "benchmark"


def get_or_create(
    db: Session, model: str, served: ServedModel, job: BenchmarkJob, source: Mapping[str, Any]
) -> ScoreSet:
    """Return the score set of a model and rows, and queue the task that measures it, if needed.

    `source` is what identifies the rows, wherever their files are.
    """
    made_by = {
        "model": answer_sets.identify(served),
        "source": dict(source),
        "template": job.chat_template,
        "versions": answer_sets.library_versions() | {"lm_eval": harness_version()},
    }
    key = answer_sets.checksum(made_by)
    score_set = db.exec(select(ScoreSet).where(ScoreSet.key == key)).first()
    if score_set is None:
        score_set = ScoreSet(key=key, model=model, made_by=made_by)
        db.add(score_set)
        db.flush()
    if score_set.finished_at is None:
        params = job.model_copy(update={"score_set": score_set.id}).model_dump(mode="json")
        tasks.enqueue(db, KIND, _subject(score_set), params)
    return score_set


def harness_version() -> str:
    """Return the version of lm-eval; empty if it is not installed."""
    try:
        return metadata.version("lm_eval")
    except metadata.PackageNotFoundError:
        return ""


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    """Keep the scores that a task has measured."""
    score_set = db.get(ScoreSet, task.params["score_set"])
    if not result or score_set is None or score_set.finished_at is not None:
        return
    measured = BenchmarkResult.model_validate(result)
    score_set.scores = {key: one.model_dump(mode="json") for key, one in measured.scores.items()}
    score_set.signature, score_set.computed_in = measured.signature, measured.computed_in
    score_set.finished_at = datetime.now(UTC)
    # The scores are kept in a table of their own.
    task.result = {"metrics": list(score_set.scores)}


def find_progress(db: Session, score_set: ScoreSet) -> AnswerProgress:
    """Return how far the measuring has come."""
    if score_set.finished_at is not None:
        return answer_sets.FINISHED
    return answer_sets.task_progress(db, KIND, _subject(score_set))


def delete_unused(db: Session) -> None:
    """Delete the score sets that no benchmark uses any longer, and cancel their tasks."""
    used = select(Benchmark.base_id).union(select(Benchmark.tuned_id))
    for score_set in db.exec(select(ScoreSet).where(col(ScoreSet.id).not_in(used))).all():
        for task in tasks.list_for_subject(db, _subject(score_set)):
            if not task.status.is_final:
                tasks.cancel(task)
        db.delete(score_set)


def _subject(score_set: ScoreSet) -> str:
    return f"scores:{score_set.id}"
