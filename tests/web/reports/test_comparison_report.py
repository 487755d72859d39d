"""The report of a comparison: the same query as its page, in one file."""

import re

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.protocols.events import Sampled
from studio.services.compare import comparisons
from studio.services.runs import attempts
from studio.web.reports.report_file import MAX_BYTES
from tests.support.factories import make_finished_run, make_run, metrics_event
from tests.support.page_reader import Node, parse_page


def add_run(db: Session, precision: str, loss: float, *, answer: str = "", name: str = "") -> None:
    run = make_finished_run(db, name or precision, precision=precision)
    text = answer or precision
    sampled = Sampled(
        stage="after", step=10, position=0, prompt="Q?", reference="fp32", answer=text
    )
    attempts.apply_events(db, run, [metrics_event(11, eval_loss=loss), sampled], 2000)


@pytest.fixture
def two(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        add_run(db, "bf16", 1.5)
        add_run(db, "fp32", 1.2)


def report(client: TestClient, query: str) -> str:
    answer = client.get(f"/compare/report.html?{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


def body(client: TestClient, query: str) -> Node:
    return parse_page(report(client, query)).one("main")


@pytest.mark.usefixtures("two")
def test_report_shows_verdict_runs_curves_and_answers(client: TestClient) -> None:
    page = body(client, "runs=1,2")

    assert "float32 is ahead by 20 %" in page.one("section", class_="verdict").text
    assert len(page.all("figure")) == 2
    answers = page.one("ol", class_="cases").text
    assert [word for word in ("✗ wrong bf16", "✓ right fp32") if word not in answers] == []
    assert "precision" in page.text


@pytest.mark.usefixtures("two")
def test_difference_charts_have_titles_in_language_of_page(client: TestClient) -> None:
    query = "runs=1,2&m=eval_loss&curves=difference"
    answer = client.get(f"/compare/report.html?{query}", headers={"Accept-Language": "zh-CN"})
    title = parse_page(answer.text).one("figure").all("title")[0].text

    assert "difference from" not in answer.text
    assert ("bfloat16" in title, "差" in title) == (True, True)


@pytest.mark.usefixtures("two")
def test_api_returns_report(client: TestClient) -> None:
    answer = client.get("/api/v1/compare/report?runs=1,2&base=2")

    assert 'filename="comparison-1-2-report.html"' in answer.headers["content-disposition"]
    assert "float32 is ahead by 20 %" in answer.text
    assert client.get("/api/v1/compare/report?runs=9").status_code == 404


@pytest.mark.usefixtures("two")
def test_report_follows_query_of_page(client: TestClient) -> None:
    page = body(client, "runs=1,2&base=2&m=eval_loss&find=nothing-like-this")

    assert len(page.all("figure")) == 1
    assert page.all("ol", class_="cases") == []
    heads = [head.text for head in page.all("th", scope="col")]
    assert "float32 #2 baseline" in heads


@pytest.mark.usefixtures("two")
def test_report_loads_nothing_and_runs_nothing(client: TestClient) -> None:
    html = report(client, "runs=1,2&download=1")

    assert re.findall(r"<script|\son\w+=|@import|url\((?!#)|\sstyle=", html) == []
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert [link for link in links if not link.startswith("data:")] == []


@pytest.mark.usefixtures("two")
def test_saved_comparison_gives_report_its_name(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        comparisons.save(db, "Which <b>format</b>?", "For the team.", "runs=1,2")
    answer = client.get("/compare/report.html?runs=1,2&saved=1&download=1")

    named = 'attachment; filename="which-b-format-b-report.html"'
    assert answer.headers["content-disposition"] == named
    assert parse_page(answer.text).one("h1").text == "Which <b>format</b>?"
    assert "For the team." in answer.text


@pytest.mark.usefixtures("two")
def test_runs_deleted_since_are_left_out(client: TestClient) -> None:
    assert "Comparison of 2 runs" in report(client, "runs=1,2,99&base=99")
    assert client.get("/compare/report.html?runs=99").status_code == 422


def test_unfinished_runs_give_no_verdict(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        add_run(db, "bf16", 1.5)
        make_run(db, "waiting", precision="fp32")

    page = body(client, "runs=1,2")
    assert "has not finished yet, so there is no verdict" in page.text
    assert "not audited" in page.text


def test_hostile_names_and_answers_are_text(client: TestClient, engine: Engine) -> None:
    text = "</style><script>alert(1)</script><img src=x onerror=alert(1)>"
    with unit_of_work(engine) as db:
        add_run(db, "bf16", 1.5, answer=text, name=text)
        add_run(db, "bf16", 1.2, answer=text, name=text + "2")
    html = report(client, "runs=1,2")

    assert re.findall(r"<(?:script|img)", html) == []
    assert html.count("</style>") == 1


def test_size_of_report_is_bounded(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for at in range(12):
            run = make_finished_run(db, "&" * 190 + str(at))
            many = [
                metrics_event(step, **{f"metric_{key}": step * key for key in range(50)})
                for step in range(11, 40)
            ]
            answers = [
                Sampled(
                    stage="after",
                    step=10,
                    position=position,
                    prompt=f"{position}" + "<" * 3000,
                    reference="&" * 3000,
                    answer="&" * 3000,
                )
                for position in range(30)
            ]
            attempts.apply_events(db, run, [*many, *answers], 2000)
    ids = ",".join(str(at) for at in range(1, 13))
    every = "&m=".join(f"metric_{key}" for key in range(50))
    html = report(client, f"runs={ids}&m={every}&all=1&noise=1&whole=1&download=1")

    assert 400_000 < len(html.encode()) <= MAX_BYTES
    assert "Shown: 20 of 30 prompts, 8 of 12 runs." in html


@pytest.mark.usefixtures("two")
def test_compare_page_offers_report_with_its_query(client: TestClient) -> None:
    page = parse_page(client.get("/compare?runs=1,2&smooth=0").text)
    links = [link.attributes["href"] for link in page.one("details", id="export").all("a")]

    assert links == [
        "/compare/report.html?runs=1,2&smooth=0.0",
        "/compare/export?runs=1,2&smooth=0.0",
    ]
