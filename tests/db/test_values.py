"""Values on PostgreSQL: numbers that are none, text that is searched, and what cannot be stored."""

import math

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from studio.db.session import read_session, unit_of_work
from studio.db.sql_functions import contains_text
from studio.db.tables import Experiment, Metric, Run
from studio.errors import InvalidError
from studio.services.runs import attempts, tags_notes
from studio.services.search import query_filters
from tests.support.factories import make_recipe, make_run, make_running, metrics_event


def test_nan_is_stored_and_read_as_nan(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        run.resolved = {"largest": math.inf, "words": "NaN"}
        told = [metrics_event(1, loss=math.nan), metrics_event(2, loss=1.0)]
        attempts.apply_events(db, run, told, 1)
        run.metrics = {"loss": math.nan}
        number = run.id
    with read_session(engine) as db:
        run = db.get_one(Run, number)
        rows = db.exec(select(Metric.value, Metric.non_finite).order_by(Metric.step)).all()  # type: ignore[arg-type] # a column

        assert math.isnan(run.metrics["loss"])
        assert run.resolved == {"largest": "Infinity", "words": "NaN"}
        assert rows == [(None, "nan"), (1.0, "")]


def test_search_ignores_case_and_takes_signs_as_they_are(engine: Engine) -> None:
    names = ["Half_done", "halfXdone", "100% sure"]
    with unit_of_work(engine) as db:
        for name in names:
            db.add(Experiment(name=name, recipe=make_recipe()))

    def found(words: str) -> list[str]:
        with read_session(engine) as db:
            query = select(Experiment.name).where(contains_text(Experiment.name, words))  # type: ignore[arg-type] # a column
            return sorted(db.exec(query).all())

    assert found("HALF_D") == ["Half_done"]
    assert found("half") == ["Half_done", "halfXdone"]
    assert found("0% S") == ["100% sure"]


def test_tags_are_listed_and_found(db: Session) -> None:
    run, _other = make_run(db, "one"), make_run(db, "two")
    run.tags = ["Größe"]
    db.flush()
    conditions = query_filters.build_conditions('tag:"Größe"', ())

    assert tags_notes.known_tags(db) == ["Größe"]
    assert len(db.exec(select(Run.id).where(*query_filters.build_conditions("has:tags", ()))).all())
    assert db.exec(select(Run.id).where(*conditions)).all() == [run.id]


def test_character_that_cannot_be_stored_is_refused_in_words(engine: Engine) -> None:
    with pytest.raises(InvalidError) as refused, unit_of_work(engine) as db:
        db.add(Experiment(name="a\x00b", recipe=make_recipe()))

    assert refused.value.message == "A text contains a character that cannot be stored."
