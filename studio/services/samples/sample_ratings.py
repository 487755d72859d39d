"""Ratings of sample answers by people. A run's mean rating is one of its metrics."""

from collections.abc import Mapping, Sequence

from sqlmodel import Session, col, func, select

from studio.db.column_types import now
from studio.db.summaries import Rating
from studio.db.tables import Run, Sample
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.services.metrics import metric_summaries
from studio.services.runs import runs

METRIC = "rating"
MIN_SCORE, MAX_SCORE = 1, 5
FINAL_STAGE = "after"
"""The stage of answers that can be rated: those after training, not during it."""


def load_scores(db: Session, run_ids: Sequence[int]) -> dict[int, int]:
    """Return the scores of runs' answers by answer id."""
    query = select(Rating.sample_id, Rating.score).join(Sample)
    return dict(db.exec(query.where(col(Sample.run_id).in_(run_ids))).all())


def get_final_sample(db: Session, run_id: int, position: int) -> Sample:
    """Return a run's answer to a prompt after training.

    Raises:
        NotFoundError: the run or the prompt does not exist.
        ConflictError: the run has no answer after training, or not yet.

    """
    runs.get(db, run_id)
    conditions = (Sample.run_id == run_id, Sample.position == position)
    samples = {sample.stage: sample for sample in db.exec(select(Sample).where(*conditions))}
    if FINAL_STAGE in samples:
        return samples[FINAL_STAGE]
    if not samples:
        raise NotFoundError(f"Run {run_id} has no answer to prompt {position}.")
    raise ConflictError(
        f"Run {run_id} has not answered prompt {position} after training.",
        hint="Only answers after training can be rated: wait until the run is done.",
    )


def get_rateable_sample(db: Session, sample_id: int) -> Sample:
    """Return an answer that can be rated.

    Raises:
        NotFoundError: the answer does not exist.
        ConflictError: the run has no answer after training.

    """
    sample = db.get(Sample, sample_id)
    if sample is None:
        raise NotFoundError(
            f"Answer {sample_id} does not exist.", hint="Its run may have been deleted."
        )
    return get_final_sample(db, sample.run_id, sample.position)


def rate(db: Session, sample: Sample, new_score: int | None) -> int | None:
    """Rate an answer, or remove its rating with None. Return the previous score, for undo.

    Raises:
        InvalidError: the score is not between 1 and 5.

    """
    if new_score is not None and not MIN_SCORE <= new_score <= MAX_SCORE:
        raise InvalidError(
            f"Ratings go from {MIN_SCORE} to {MAX_SCORE}, not {new_score}.", param="score"
        )
    existing = db.get(Rating, sample.id)
    before = existing.score if existing else None
    if new_score is None and existing is not None:
        db.delete(existing)
    elif new_score is not None:
        rating = existing or Rating(sample_id=sample.id or 0, score=new_score)
        rating.score, rating.rated_at = new_score, now()
        db.add(rating)
    db.flush()
    _update_mean(db, runs.get(db, sample.run_id))
    return before


def count_rated(db: Session, run_ids: Sequence[int]) -> Mapping[int, int]:
    """Return how many answers of each run are rated."""
    query = select(Sample.run_id, func.count()).join(Rating)
    query = query.where(col(Sample.run_id).in_(run_ids)).group_by(col(Sample.run_id))
    return dict(db.exec(query).all())


def _update_mean(db: Session, run: Run) -> None:
    """Store the mean as a metric of the run; nothing else writes it."""
    query = select(func.avg(Rating.score)).join(Sample).where(Sample.run_id == run.id)
    mean = db.exec(query).one()
    other_metrics = {name: value for name, value in run.metrics.items() if name != METRIC}
    run.metrics = other_metrics if mean is None else other_metrics | {METRIC: float(mean)}
    # Earlier means must not count as the run's best or worst value.
    summaries = metric_summaries.load_by_run(db, [run.id or 0], [METRIC])
    for summary in summaries.get(run.id or 0, {}).values():
        db.delete(summary)
    db.flush()
    if mean is not None:
        metric_summaries.add_final_values(db, run.id or 0, {METRIC: float(mean)})
