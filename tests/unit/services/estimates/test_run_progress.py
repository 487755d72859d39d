"""Where a run's time went, told from its row and from what its process said."""

from datetime import UTC, datetime, timedelta

from sqlmodel import Session

from studio.db.tables import Run
from studio.protocols.events import Event, MetricsLogged, PhaseChanged, Started
from studio.services.estimates import run_progress
from tests.support.factories import make_run, make_running

SUBMITTED = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return SUBMITTED + timedelta(seconds=seconds)


def begun(db: Session) -> Run:
    run = make_run(db)
    run.created_at, run.claimed_at, run.first_step_at = SUBMITTED, at(1), at(8)
    return run


def said() -> list[Event]:
    return [
        PhaseChanged(name="loading", at=at(-60)),  # of an earlier attempt
        PhaseChanged(name="loading", at=at(2)),
        PhaseChanged(name="tokenising", at=at(4)),
        PhaseChanged(name="training", at=at(5)),
        Started(total_steps=2, resolved={}, at=at(7)),
        MetricsLogged(step=1, epoch=0, tokens=1, seconds=1, metrics={}, at=at(8)),
        PhaseChanged(name="saving", at=at(9)),
    ]


def test_startup_phases_are_listed_in_order(db: Session) -> None:
    assert run_progress.startup_phases(begun(db), said()) == [
        ("Waiting in the queue", 1),
        ("Starting the process", 1),
        ("Loading", 2),
        ("Tokenising", 1),
        ("Auditing number formats", 2),
        ("First step", 1),
    ]


def test_startup_phases_are_empty_before_first_step(db: Session) -> None:
    run = begun(db)
    run.first_step_at = None

    assert run_progress.startup_phases(run, said()) == []


def test_remaining_time_converges_with_periodic_validations(db: Session) -> None:
    """Forty steps of a second each, and after every tenth a validation of five."""
    run = make_running(db)
    run.total_steps, ends = 40, 40 + 4 * 5

    def left(step: int) -> tuple[float, float]:
        """Return the seconds estimated and the true ones, just after a step."""
        passed = step + 5 * ((step - 1) // 10)
        run.first_step_at = datetime.now(UTC) - timedelta(seconds=passed - 1)
        run.step = step
        told = run_progress.measure(run).eta_seconds
        assert told is not None
        return told, ends - passed

    errors = [abs(told / true - 1) for told, true in map(left, (12, 22, 32))]

    assert max(errors) < 0.1
    assert abs(left(39)[0] - left(39)[1]) < 6
