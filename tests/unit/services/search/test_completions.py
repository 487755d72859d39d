"""What may be written at a place of a query."""

import pytest
from sqlmodel import Session

from studio.services.runs import attempts, tags_notes
from studio.services.search import palette_search
from tests.support.factories import make_finished_run, metrics_event


@pytest.fixture
def told(db: Session) -> Session:
    """Give a studio with two runs, their tags and their numbers."""
    first = make_finished_run(db, "alpha", optimisation={"learning_rate": 1e-3})
    make_finished_run(db, "beta", precision="fp32")
    attempts.apply_events(db, first, [metrics_event(11, eval_loss=0.5)], 2000)
    tags_notes.update(db, first.id or 0, tags=["good", "two words"])
    return db


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ("stat", "status:"),
        ("-stat", "status:"),
        ("eval_loss", "eval_loss<"),
        ("status:fa", "failed"),
        ("status:failed,can", "cancelled"),
        ("tag:wo", '"two words"'),
        ('tag:"two w', '"two words"'),
        ("model:", "starter"),
        ("name:b", "beta"),
        ("optimisation.learning_rate:0.00", "0.0002"),
        ("created>", "today"),
        ("is:tr", "trashed"),
        ("duration>", "10min"),
        ("alpha precision:bf", "bf16"),
    ],
)
def test_best_match_is_offered_first(told: Session, query: str, offered: str) -> None:
    assert palette_search.complete(told, query, len(query)).offers[0].text == offered


@pytest.mark.parametrize("query", ["", "alpha ", '"stat', "nothing:sta", "status:failed", "loss:"])
def test_nothing_is_offered_without_match(told: Session, query: str) -> None:
    assert palette_search.complete(told, query, len(query)).offers == []


def test_field_is_completed_by_its_label(told: Session) -> None:
    offers = palette_search.complete(told, "lora rank", 9).offers

    assert (offers[0].text, offers[0].about) == ("adapter.r<", "LoRA rank")


def test_numeric_field_completion_offers_operators(told: Session) -> None:
    offers = palette_search.complete(told, "eval_loss", 9).offers

    assert [(one.text, one.about) for one in offers[:4]] == [
        ("eval_loss<", "less than"),
        ("eval_loss>", "greater than"),
        ("eval_loss<=", "at most"),
        ("eval_loss>=", "at least"),
    ]


def test_completion_keeps_surrounding_text(told: Session) -> None:
    query = "alpha sta:failed beta"
    found = palette_search.complete(told, query, 9)

    assert query[: found.start] + found.offers[0].text + query[found.end :] == (
        "alpha status:failed beta"
    )
