"""Whose experiment a run joins: members add to their own and everyone's, and copy another's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import col, select

from studio.db.accounts import Role, Scope
from studio.db.owners import Actor, acting_as
from studio.db.session import read_session, unit_of_work
from studio.db.tables import Experiment, Run
from studio.services.operations.home import open_home
from tests.support.factories import make_finished_run
from tests.support.template_homes import TemplateHome
from tests.support.visitors import Visitors, make_visitors

ANNS, EVERYONES = 1, 2
"""Numbers of an experiment and of its only run."""

Attempt = tuple[str, dict[str, Any]]
SEED = {"optimisation": {"seed": 7}}
SPACE = {"optimisation.seed": {"values": [1, 2]}}
ADDING: dict[str, Attempt] = {
    "run": (f"/api/v1/experiments/{ANNS}/runs", {"json": {}}),
    "study": (
        f"/api/v1/experiments/{ANNS}/studies",
        {"json": {"modes": ["fp32", "bf16"], "seeds": 1}},
    ),
    "sweep": ("/api/v1/sweeps", {"json": {"experiment_id": ANNS, "space": SPACE}}),
    "run by page": (f"/experiments/{ANNS}/runs", {"data": {"seed": "7"}}),
}
COPYING: dict[str, Attempt] = {
    "changed run": (
        f"/api/v1/runs/{ANNS}/again",
        {"json": {"overrides": {"optimisation": {"seed": 7}}}},
    ),
    "changed run by page": (f"/runs/{ANNS}/again", {"data": {}}),
    "study by page": (
        "/reports/precision/new",
        {"data": {"from": f"run:{ANNS}", "modes": ["bf16"], "seeds": "1"}},
    ),
    "sweep by page": (
        "/sweeps/new",
        {"data": {"from": f"run:{ANNS}", "space.optimisation.seed": "1, 2"}},
    ),
}


@pytest.fixture
def home(furnished: TemplateHome, tmp_path: Path) -> Iterator[Visitors]:
    """Return a studio with one experiment of ann's and one of everyone's, each with a run."""
    settings = furnished.copy(tmp_path / "home", allowed_hosts="testserver")
    engine = open_home(settings)
    made = make_visitors(engine, settings, "accounts")
    ann = Actor(name="ann", account_id=made.account("ann", Role.MEMBER), is_limited=True)
    with unit_of_work(engine) as db:
        with acting_as(ann):
            assert make_finished_run(db).experiment_id == ANNS
        assert make_finished_run(db).experiment_id == EVERYONES
    yield made
    engine.dispose()


def send(person: TestClient, attempt: Attempt) -> tuple[int, str]:
    address, body = attempt
    answer = person.post(address, **body)
    return answer.status_code, answer.text


@pytest.mark.parametrize("attempt", ADDING.values(), ids=ADDING)
def test_only_owner_can_add_runs_to_experiment(home: Visitors, attempt: Attempt) -> None:
    bob, ann = (home.person(name, Role.MEMBER) for name in ("bob", "ann"))
    status, text = send(bob, attempt)

    assert (status, "This belongs to another user." in text) == (403, True)
    assert send(ann, attempt)[0] in {201, 303}


@pytest.mark.parametrize("attempt", ADDING.values(), ids=ADDING)
def test_administrator_and_owner_token_can_add_runs(home: Visitors, attempt: Attempt) -> None:
    assert send(home.person("root", Role.ADMINISTRATOR), attempt)[0] in {201, 303}
    assert send(home.program(Scope.SUBMIT, "ann"), attempt)[0] in {201, 303}


def test_any_member_can_add_runs_to_unowned_experiment(home: Visitors) -> None:
    bob = home.person("bob", Role.MEMBER)

    assert send(bob, (f"/api/v1/experiments/{EVERYONES}/runs", {"json": {}}))[0] == 201


@pytest.mark.parametrize("attempt", COPYING.values(), ids=COPYING)
def test_starting_from_run_of_another_user_makes_copy(home: Visitors, attempt: Attempt) -> None:
    bob = home.person("bob", Role.MEMBER)
    status, text = send(bob, attempt)
    assert status in {201, 303}, text

    with read_session(home.engine) as db:
        copy = db.exec(select(Experiment).order_by(col(Experiment.id).desc())).first()
        assert copy is not None
        started = db.exec(select(Run).where(Run.experiment_id == ANNS)).all()
        owner = home.account("bob", Role.MEMBER)
    assert (copy.owner_id, copy.parent, len(started)) == (owner, f"run:{ANNS}", 1)


def test_experiment_page_of_another_user_offers_no_run(home: Visitors) -> None:
    action = f'action="/experiments/{ANNS}/runs"'
    shown = {
        name: action in home.person(name, Role.MEMBER).get(f"/experiments/{ANNS}").text
        for name in ("ann", "bob")
    }

    assert shown == {"ann": True, "bob": False}
