"""Numerical issues of a study's runs, along their steps."""

import math

from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.protocols.events import AlarmRaised, Event, Started
from studio.services.runs import attempts, states
from studio.services.studies import study_reports
from tests.support.factories import make_run, metrics_event


def told(db: Session, *events: Event) -> Run:
    run = make_run(db)
    states.move(db, run, RunStatus.STARTING)
    attempts.apply_events(db, run, [Started(total_steps=10, resolved={}), *events], 1)
    db.flush()
    return run


def incidents_of(db: Session, run: Run) -> list[tuple[str, int, int, int]]:
    found = study_reports.build_timeline(db, [run]).incidents
    return [(one.kind, one.first, one.last, one.count) for one in found]


def test_run_without_problems_has_no_incidents(db: Session) -> None:
    run = told(db, metrics_event(1, loss=1.0), metrics_event(2, loss=0.5))

    assert (incidents_of(db, run), study_reports.build_timeline(db, [run]).steps) == ([], 10)


def test_alarm_incident_is_placed_at_its_step(db: Session) -> None:
    run = told(db, metrics_event(4, loss=1.0), AlarmRaised(code="x", message="It broke.", step=4))

    found = study_reports.build_timeline(db, [run]).incidents
    assert [(one.kind, one.first, one.text) for one in found] == [("alarm", 4, "It broke.")]


def test_skipped_step_incident_is_placed_at_counter_increase(db: Session) -> None:
    counts = {1: 1.0, 2: 1.0, 3: 1.0, 5: 3.0, 6: 3.0}
    run = told(db, *(metrics_event(step, skipped_steps=count) for step, count in counts.items()))

    assert incidents_of(db, run) == [("skipped", 1, 1, 1), ("skipped", 5, 5, 2)]


def test_consecutive_broken_losses_form_one_incident(db: Session) -> None:
    broken = {1: 2.0, 2: math.nan, 3: math.inf, 4: math.nan, 5: 1.0, 8: math.nan}
    run = told(db, *(metrics_event(step, loss=loss) for step, loss in broken.items()))

    assert incidents_of(db, run) == [("broken", 2, 4, 3), ("broken", 8, 8, 1)]


def test_timeline_axis_has_an_edge_for_each_step_or_many() -> None:
    def edges(steps: int) -> list[int]:
        return study_reports.Timeline(steps=steps, incidents=[]).edges

    assert edges(1) == []
    assert edges(3) == [1, 2, 3, 3]
    assert (len(edges(1000)), edges(1000)[:2], edges(1000)[-1]) == (201, [1, 6], 1000)
