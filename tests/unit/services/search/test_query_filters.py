"""Which runs a query finds."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlmodel import Session

from studio.db.tables import Run
from studio.services.runs import attempts, bulk_actions, tags_notes
from studio.services.search import run_table
from studio.services.search.query_filters import QueryError
from studio.services.search.run_table import TableView
from tests.support.factories import make_finished_run, make_run, make_running, metrics_event

NOW = datetime.now(UTC)


@pytest.fixture
def four(db: Session) -> list[Run]:
    """Make runs that differ in all that can be asked: alpha, beta, gamma, and delta."""
    alpha = make_finished_run(db, "alpha tone", optimisation={"learning_rate": 1e-3})
    beta = make_finished_run(db, "beta", precision="fp32", adapter={"kind": "full"})
    gamma = make_running(db, "gamma")
    delta = make_run(db, "delta 100 %")
    attempts.apply_events(db, gamma, [metrics_event(4, loss=float("nan"), eval_loss=0.25)], 1)
    tags_notes.update(db, alpha.id or 0, tags=["good", "two words"], notes="A calm Tone.")
    alpha.created_at, beta.created_at = NOW - timedelta(days=40), NOW - timedelta(days=3)
    alpha.claimed_at, alpha.finished_at = NOW - timedelta(hours=3), NOW - timedelta(hours=1)
    return [alpha, beta, gamma, delta]


def found(db: Session, query: str) -> str:
    """Return the first letters of the runs that a query finds, sorted."""
    rows = run_table.find_runs(db, TableView(query=query), limit=99)
    return "".join(sorted(run.name[0] for run in rows))


@pytest.mark.parametrize(
    ("query", "letters"),
    [
        ("", "abdg"),
        ("ALPHA", "a"),
        ("calm", "a"),
        ("%", "d"),
        ("_", ""),
        ("/", ""),
        ("#2", "b"),
        ("-tone", "bdg"),
        ('"calm tone"', "a"),
        ("status:succeeded", "ab"),
        ("status:queued,running", "dg"),
        ("status!=succeeded", "dg"),
        ("tag:good", "a"),
        ('tag:"two words"', "a"),
        ("tag:word", ""),
        ("-tag:good", "bdg"),
        ("model:start", "abdg"),
        ("model=start", ""),
        ("precision:fp32", "b"),
        ("method:sft dataset:starter", "abdg"),
        ("created>7d", "bdg"),
        ("created<=7d", "a"),
        ("created:today", "dg"),
        (f"created<{NOW.year + 1}", "abdg"),
        (f"created>={NOW:%Y-%m-%d}", "dg"),
        ("duration>90min duration<3h", "a"),
        ("optimisation.learning_rate>=1e-3", "a"),
        ("learning_rate:0.0002", "bdg"),
        ("adapter.kind:lora", "adg"),
        ("adapter.r:16", "adg"),
        ("-adapter.r:16", "b"),
        ("adapter.r:*", "adg"),
        ("eval_loss<0.5", "g"),
        ("-eval_loss<0.5", "abd"),
        ("loss.min<=2 loss.max>2.5", "ab"),
        ("loss.best:2", "ab"),
        ("has:nan", "g"),
        ("has:notes", "a"),
        ("has:tags", "a"),
        ("is:live", "g"),
        ("is:waiting", "d"),
        ("id:1,3", "ag"),
    ],
)
def test_query_finds_matching_runs(db: Session, four: list[Run], query: str, letters: str) -> None:
    assert len(four) == 4
    assert found(db, query) == letters


@pytest.mark.parametrize(
    ("query", "message", "place"),
    [
        ("a stauts:failed", "There is no field named stauts.", (2, 15)),
        ("status:faild", "status cannot be faild.", (0, 12)),
        ("status>failed", "status is not a number, so only : and = work.", (0, 13)),
        ("eval_loss<low", "low is not a number.", (0, 13)),
        ("created>soon", "soon is not a date.", (0, 12)),
        ("created>2026-13-01", "2026-13-01 is not a date.", (0, 18)),
        ("is:lost", "is:lost is not a valid filter.", (0, 7)),
        ("loss.curve<3", "There is no field named loss.curve.", (0, 12)),
        ("tag:,", "tag: needs a value.", (0, 5)),
    ],
)
def test_invalid_query_error_gives_position(
    db: Session, query: str, message: str, place: tuple[int, int]
) -> None:
    with pytest.raises(QueryError) as refused:
        found(db, query)

    assert (refused.value.message, (refused.value.start, refused.value.end)) == (message, place)


def test_unknown_field_error_suggests_nearest_field(db: Session) -> None:
    with pytest.raises(QueryError) as refused:
        found(db, "stauts:failed")

    assert refused.value.hint.startswith("Did you mean status? ")


def test_archived_and_trashed_runs_are_found_only_when_requested(
    db: Session, four: list[Run]
) -> None:
    bulk_actions.archive(db, [1])
    bulk_actions.move_to_trash(db, [2])

    assert len(four) == 4
    queries = ("", "is:archived", "is:trashed", "alpha", "is:archived,trashed")
    assert [found(db, one) for one in queries] == ["dg", "a", "b", "", "ab"]
