"""What people think of answers."""

import pytest
from sqlmodel import Session, select

from studio.db.summaries import Rating
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.protocols.events import Failed, Sampled, SampleStage
from studio.services.compare import compare
from studio.services.runs import attempts, run_commands
from studio.services.samples import sample_ratings
from tests.support.factories import make_finished_run, make_running


def answered(position: int, stage: SampleStage = "after", step: int = 10) -> Sampled:
    return Sampled(
        stage=stage, step=step, position=position, prompt="Q?", reference="R", answer="A"
    )


def make_answered(db: Session, count: int = 2) -> int:
    run = make_finished_run(db)
    attempts.apply_events(db, run, [answered(place) for place in range(count)], 2000)
    return run.id or 0


def rate(db: Session, run_id: int, position: int, score: int | None) -> int | None:
    return sample_ratings.rate(db, sample_ratings.get_final_sample(db, run_id, position), score)


def test_mean_rating_becomes_run_metric(db: Session) -> None:
    run_id = make_answered(db, 3)
    rate(db, run_id, 0, 4)
    rate(db, run_id, 1, 5)

    made = compare.compare(db, [run_id])
    assert made.metrics["rating"][0].value == 4.5
    assert sample_ratings.count_rated(db, [run_id]) == {run_id: 2}


def test_rating_returns_previous_score(db: Session) -> None:
    run_id = make_answered(db)

    assert [rate(db, run_id, 0, score) for score in (2, 5, None)] == [None, 2, 5]


def test_run_without_ratings_has_no_rating_metric(db: Session) -> None:
    run_id = make_answered(db)
    rate(db, run_id, 0, 3)
    rate(db, run_id, 0, None)

    assert "rating" not in compare.compare(db, [run_id]).metrics


def test_ratings_of_two_runs_are_compared(db: Session) -> None:
    ids = [make_answered(db, 1) for _ in range(2)]
    for run_id, score in zip(ids, (2, 4), strict=True):
        rate(db, run_id, 0, score)

    cell = compare.compare(db, ids).metrics["rating"][1]
    assert (cell.delta, cell.verdict, cell.noise) == (2.0, "", "seed")


@pytest.mark.parametrize("score", [0, 6])
def test_score_outside_scale_is_rejected(db: Session, score: int) -> None:
    run_id = make_answered(db)

    with pytest.raises(InvalidError):
        rate(db, run_id, 0, score)


def test_only_final_samples_can_be_rated(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(db, run, [answered(0, "before", 0), answered(0, "during", 5)], 1)

    with pytest.raises(ConflictError, match="after training"):
        sample_ratings.get_final_sample(db, run.id or 0, 0)
    with pytest.raises(NotFoundError):
        sample_ratings.get_final_sample(db, run.id or 0, 1)


def test_restarting_run_deletes_its_ratings(db: Session) -> None:
    run_id = make_answered(db)
    rate(db, run_id, 0, 3)
    run = make_running(db)
    attempts.apply_events(db, run, [answered(0)], 1)
    rate(db, run.id or 0, 0, 5)
    attempts.fail(db, run, Failed(code="x", message="No."))
    run_commands.restart(db, run.id or 0)

    assert [one.score for one in db.exec(select(Rating))] == [3]
    assert "rating" not in run.metrics
