"""Judges of an evaluation's answers, on the page and over REST; people judge blind."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import select

from studio.db.evaluations import Evaluation, JudgedAnswers, Judgement
from studio.db.session import unit_of_work
from studio.db.tasks import Task
from studio.evaluation.judging import Choice
from studio.services.evaluations import judgements
from studio.settings import Settings
from tests.support import evaluated_runs
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page

API = "/api/v1/runs/1/evaluations/1"
PAGE = "/runs/1/evaluation?number=1"
EXPECTED = [f"Answer {number}" for number in range(30)]
TUNED = [*EXPECTED[:20], *["No"] * 10]
WON, FLIPPED = evaluated_runs.TUNED_WINS, evaluated_runs.FIRST_WINS


@pytest.fixture
def evaluation(engine: Engine, settings: Settings) -> int:
    """Make an evaluation in which 20 of 30 pairs of answers differ."""
    with unit_of_work(engine) as db:
        run = make_finished_run(db, adapter={"kind": "lora"})
        evaluated_runs.lay_out(db, settings, run)
        made = evaluated_runs.evaluate(db, settings, 1, ["No"] * 30, TUNED, EXPECTED)
        return made.id or 0


def judge(engine: Engine, settings: Settings, choices: list[tuple[Choice, Choice]]) -> None:
    with unit_of_work(engine) as db:
        evaluated_runs.judge(db, settings, db.get_one(Evaluation, 1), choices)


def error_of(answer: Any) -> tuple[int, str]:  # noqa: ANN401 -- the client's response
    return answer.status_code, answer.json()["error"]["message"]


@pytest.mark.usefixtures("evaluation")
def test_page_asks_a_judge_and_tells_the_cost_before(client: TestClient, engine: Engine) -> None:
    form = parse_page(client.get(PAGE).text).one("form", action="/runs/1/evaluations/1/judgements")
    options = [option.attributes["value"] for option in form.all("option")]
    page = parse_page(client.post(form.attributes["action"], data={"judge": "model:starter"}).text)

    assert "model:starter" in options
    assert "endpoint" not in options
    assert "at most 40 requests with about" in form.text
    assert page.one("progress", **{"aria-label": "Progress of the judge"})
    part = page.one("div", **{"hx-target": "#judged"}).attributes["hx-get"]
    assert "Progress of the judge" in client.get(part).text
    with unit_of_work(engine) as db:
        (task,) = db.exec(select(Task).where(Task.kind == "judge-here")).all()
        assert len(task.params["pairs"]) == 30


@pytest.mark.usefixtures("evaluation")
def test_endpoint_is_offered_once_it_is_set(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    there = settings.model_copy(
        update={"judge_url": "https://judge.example/v1", "judge_model": "large"}
    )
    with unit_of_work(engine) as db:
        made = judgements.create(db, there, db.get_one(Evaluation, 1), "endpoint", 5)
        (task,) = db.exec(select(Task).where(Task.kind == "judge")).all()
        title, asked = made.title, task.params["judge"]

    assert title == "large"
    assert asked == {"kind": "endpoint", "url": "https://judge.example/v1", "model": "large"}
    answer = client.post(f"{API}/judgements", json={"judge": "endpoint"})
    assert error_of(answer) == (422, "There is no judge endpoint.")


@pytest.mark.usefixtures("evaluation")
def test_verdict_and_pairs_are_shown(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    judge(engine, settings, [FLIPPED] * 2 + [WON] * 20 + [("", "A")])
    page = parse_page(client.get(PAGE).text)
    (told,) = client.get(f"{API}/judgements").json()["data"]
    one = client.get(f"{API}/judgements/1").json()

    assert "The judge prefers this run's model: it wins 95 % of 22 pairs" in page.text
    assert "1 reply could not be read and does not count" in page.text
    assert "same place chosen in both orders:" in page.text
    # Some of the rows have equal answers, about which no judge is asked.
    assert 2 / 22 < told["flipped_share"] <= 2 / 12
    assert told == one
    assert (told["wins"], told["losses"], told["ties"], told["unreadable"]) == (20, 0, 2, 1)
    assert told["win_rate"]["n"] == 22
    assert told["is_reliable"] is True
    assert [pair["verdict"] for pair in told["pairs"][:3]] == ["tie", "tie", "tuned"]
    assert told["pairs"][-1]["verdict"] == "unreadable"
    assert told["pairs"][2]["replies"] == ["Because.\nVERDICT: B", "Because.\nVERDICT: A"]


@pytest.mark.usefixtures("evaluation")
def test_person_judges_blind_and_the_judge_is_compared(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    """A person who always prefers the expected answer agrees with a judge who does the same."""
    judge(engine, settings, [WON] * 30)
    seen = set()
    for count in range(20):
        page = parse_page(client.get("/runs/1/evaluations/1/vote").text)
        form = page.one("form", action="/runs/1/evaluations/1/vote")
        place = form.one("input", name="position").attributes["value"]
        answers = [one.all("p")[1].text for one in form.all("div", role="group")]
        seen.add(place)
        assert f"{count} judged" in page.text
        assert sorted(answers) == sorted(["No", f"Answer {place}"])
        better = "AB"[answers.index(f"Answer {place}")]
        client.post(form.attributes["action"], data={"position": place, "choice": better})
    done = client.get("/runs/1/evaluations/1/vote").text
    told = client.get(f"{API}/judgements").json()["data"]

    assert len(seen) == 20
    assert "All pairs are judged" in done
    assert [one["judge"] for one in told] == ["the local user", "starter"]
    assert (told[0]["wins"], told[0]["losses"]) == (20, 0)
    assert told[1]["agreement"] == {"n": 20, "share": 1.0, "kappa": None}
    assert "Agrees with people on 100 % of 20 pairs" in parse_page(client.get(PAGE).text).text


@pytest.mark.usefixtures("evaluation")
def test_vote_over_rest_replaces_an_earlier_one(client: TestClient, engine: Engine) -> None:
    for verdict in ("base", "tie"):
        answer = client.post(f"{API}/votes", json={"number": 3, "verdict": verdict})
        assert answer.status_code == 204
    with unit_of_work(engine) as db:
        (kept,) = db.exec(select(JudgedAnswers)).all()

        assert (kept.position, kept.base_first) == (2, "tie")
    unknown = client.post(f"{API}/votes", json={"number": 99, "verdict": "tie"})
    assert error_of(unknown) == (404, "Row 99 is not part of evaluation 1.")


@pytest.mark.usefixtures("evaluation")
def test_unknown_judges_are_refused(client: TestClient) -> None:
    for name in ("model:missing", "reward:1", "person", "endpoint", ""):
        answer = client.post(f"{API}/judgements", json={"judge": name})
        assert error_of(answer) == (422, f"There is no judge {name}."), name


def test_unfinished_evaluation_cannot_be_judged(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        evaluated_runs.lay_out(db, settings, make_finished_run(db, adapter={"kind": "lora"}))
    assert client.post("/api/v1/runs/1/evaluations", json={}).status_code == 202
    answer = client.post(f"{API}/judgements", json={"judge": "model:starter"})

    assert error_of(answer) == (409, "The models have not answered all rows yet.")
    assert "Ask a judge" not in client.get(PAGE).text


@pytest.mark.usefixtures("evaluation")
def test_judgements_are_deleted_alone_and_with_their_evaluation(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    judge(engine, settings, [WON] * 5)
    judge(engine, settings, [WON] * 5)
    client.post("/runs/1/evaluations/1/judgements", data={"judge": "model:starter"})

    assert client.delete(f"{API}/judgements/3").status_code == 204
    with unit_of_work(engine) as db:
        waiting = db.exec(select(Task).where(Task.subject == "judgement:3")).one()
        assert waiting.status == "cancelled"
    page = parse_page(client.post("/runs/1/evaluations/1/judgements/2/delete").text)
    assert len(page.all("article")) == 1
    client.delete(API)
    with unit_of_work(engine) as db:
        assert not db.exec(select(Judgement)).all()
        assert not db.exec(select(JudgedAnswers)).all()
