"""A run's report: one file that says what the run achieved, and no more than that."""

import re
from base64 import b64decode
from html import unescape

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlmodel import Session

from studio import redaction
from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.protocols.events import Failed, Sampled, Started
from studio.services.runs import attempts, run_commands, runs
from studio.settings import Settings
from studio.web.i18n import formatting
from studio.web.reports.report_file import MAX_BYTES
from tests.support.factories import (
    make_finished_run,
    make_recipe,
    make_run,
    make_running,
    metrics_event,
)
from tests.support.page_reader import Node, parse_page

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "{{ 7 * 7 }} {% for %}",
    "<style></style>",
)


def report(client: TestClient, run_id: int = 1, language: str = "en") -> str:
    headers = {"Accept-Language": language}
    answer = client.get(f"/runs/{run_id}/report.html", headers=headers)
    assert answer.status_code == 200
    return answer.text


def body(client: TestClient, run_id: int = 1) -> Node:
    return parse_page(report(client, run_id)).one("main")


def verdict(client: TestClient, run_id: int = 1) -> str:
    return body(client, run_id).one("section", class_="verdict").text


def test_each_chart_can_be_saved_by_itself(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    link = next(one for one in body(client).all("a") if "download" in one.attributes)

    kind, _comma, encoded = link.attributes["href"].partition(",")
    assert (kind, link.attributes["download"]) == (
        "data:image/svg+xml;base64",
        "loss-nats-token.svg",
    )
    picture = b64decode(encoded).decode()
    assert picture.startswith("<svg xmlns=")
    assert "<title>Loss (nats/token)</title>" in picture
    file = client.get("/runs/1/report.html?download=1").text
    assert "data:image/svg+xml;base64,PHN2Zy" not in file.partition("<main>")[2]


def answer(stage: str, text: str, *, position: int = 0, **more: str) -> Sampled:
    step = 0 if stage == "before" else 10
    common = {"prompt": "Who?", "reference": "Me."} | more
    return Sampled.model_validate(
        common | {"stage": stage, "step": step, "position": position, "answer": text}
    )


def finish(db: Session, *events: Sampled | Started, name: str = "first try") -> Run:
    run = make_finished_run(db, name)
    attempts.apply_events(db, run, list(events), 2000)
    return run


def test_report_shows_verdict_metrics_and_answers(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        finish(db, answer("before", "You."), answer("after", "Me."))

    page = body(client)
    assert "It learned it: 0 of 1 → 1 of 1 right" in page.one("section", class_="verdict").text
    row = page.one("table", class_="answers").one("tbody").one("tr").text
    assert [
        word for word in ("Who?", "Me.", "✗ wrong You.", "✓ right Me.") if word not in row
    ] == []
    assert len(page.all("figure")) == 1


def test_report_has_what_is_needed_to_trust_it(client: TestClient, engine: Engine) -> None:
    ran = {"compute": "float32", "weights": "float32"}
    resolved = {
        "plan": ran,
        "audit": ran | {"compute": "bfloat16"},
        "device_name": "Fast GPU",
        "versions": {"torch": "2.13"},
    }
    with unit_of_work(engine) as db:
        run = make_running(db, precision="fp32", optimisation={"max_steps": 7})
        attempts.apply_events(db, run, [Started(total_steps=7, resolved=resolved)], 10)

    text = body(client).text
    expected = (
        "What ran differs from the plan",
        "Fast GPU",
        "torch 2.13",
        "optimisation.max_steps",
    )
    assert [part for part in (*expected, "0" * 64, "1" * 64) if part not in text] == []


def test_report_loads_nothing_and_runs_nothing(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        finish(db, answer("before", "You."), answer("after", "Me."))
    answered = client.get("/runs/1/report.html?download=1")

    assert re.findall(r"<script|\son\w+=|@import|url\((?!#)|\sstyle=", answered.text) == []
    links = re.findall(r'(?:src|href)="([^"]*)"', answered.text)
    assert [link for link in links if not link.startswith("data:")] == []


def test_download_has_name_of_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "Tone of voice, 2nd try!")
        make_finished_run(db, "语气")
    names = [
        client.get(f"/runs/{run_id}/report.html?download=1").headers["content-disposition"]
        for run_id in (1, 2)
    ]

    assert names == [
        'attachment; filename="tone-of-voice-2nd-try-1-report.html"',
        'attachment; filename="run-2-report.html"',
    ]


def test_page_allows_its_own_style_and_nothing_else(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    headers = client.get("/runs/1/report.html").headers

    assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_api_returns_report_in_english(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    answered = client.get("/api/v1/runs/1/report", headers={"Accept-Language": "zh-CN"})

    assert answered.headers["content-type"].startswith("text/html")
    assert "Training report" in answered.text
    assert client.get("/api/v1/runs/9/report").status_code == 404


def test_report_is_in_language_of_reader(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    html = report(client, language="zh-CN")

    assert '<html lang="zh-Hans">' in html
    assert "训练报告" in html


def test_queued_run_claims_nothing(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    text = body(client).text
    assert "It has not trained yet" in text
    assert "This run has no sample answers." in text
    assert "This run reported no metrics." in text
    assert "Not audited" in text


def test_running_run_has_no_verdict(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [answer("before", "You."), metrics_event(4, loss=2.5)], 10)

    assert "Not finished: step 4 of 10" in verdict(client)
    assert "It learned" not in body(client).text


def test_failed_run_says_why(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [metrics_event(4, loss=2.5)], 10)
        attempts.fail(db, run, Failed(code="out_of_memory", message="No room.", hint="Less."))

    text = verdict(client)
    assert [part for part in ("No room. Less.", "It failed after step 4") if part not in text] == []


def test_cancelled_run_says_that_nothing_was_kept(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_commands.cancel(db, make_run(db).id or 0)

    assert "Cancelled before its first step Its model was not kept." in verdict(client)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_answers_are_text(client: TestClient, engine: Engine, text: str) -> None:
    resolved = {"device_name": text, "versions": {text: text}, "audit": {text: text}}
    with unit_of_work(engine) as db:
        sampled = answer("after", text, prompt=text, reference=text)
        run = finish(db, Started(total_steps=10, resolved=resolved), sampled, name=text)
        run.notes, run.precision_reason = text, text
        db.add(run)
    html = report(client)
    elements = re.findall(r"<(\w+)", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL))

    assert {*elements} & {"script", "img", "style", "iframe"} == set()
    assert not re.search(r"<[^>]*\son\w+=", html.replace("&#34;", ""))
    assert " ".join(text.split()) in parse_page(html).one("h1").text


@hypothesis_settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_any_answer_is_shown_as_it_is(client: TestClient, engine: Engine, text: str) -> None:
    with unit_of_work(engine) as db:
        run_id = finish(db, answer("after", text)).id or 0
    html = report(client, run_id)
    shown = re.findall(r'<span class="words">(.*?)</span>', html, flags=re.DOTALL)

    assert unescape(shown[-1]) == text


def test_secrets_are_redacted(client: TestClient, engine: Engine) -> None:
    redaction.register_secrets(["open-sesame-7"])
    token = "hf_" + "a" * 30
    with unit_of_work(engine) as db:
        run = finish(
            db, answer("after", f"the {token}", prompt="open-sesame-7"), name=f"with {token}"
        )
        run.notes = "https://me:pass-word@host/x?token=abcdef"
        db.add(run)
    html = report(client)

    assert [word for word in (token, "open-sesame", "pass-word", "abcdef") if word in html] == []
    assert "***" in html


def test_size_of_report_is_bounded(client: TestClient, engine: Engine) -> None:
    keys = [f"metric_{at}" for at in range(60)]
    with unit_of_work(engine) as db:
        run = make_running(db)
        many = [
            metrics_event(step, **{key: step * 1.01**at for at, key in enumerate(keys)})
            for step in range(1, 400)
        ]
        answers = [
            answer(stage, "&" * 20_000, position=at, prompt="<" * 5000)
            for at in range(100)
            for stage in ("before", "after")
        ]
        attempts.apply_events(db, run, [*many, *answers], 10)
        run.notes = "&" * 10_000
        db.add(run)
    html = report(client)

    assert 500_000 < len(html.encode()) <= MAX_BYTES
    assert "Shown: 40 of 100 prompts." in html


def test_run_menu_links_to_report_once_there_is_one(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
        make_run(db)

    def links(run_id: int) -> list[Node]:
        page = parse_page(client.get(f"/runs/{run_id}").text)
        return page.all("a", href=f"/runs/{run_id}/report.html")

    assert (len(links(1)), len(links(2))) == (1, 0)


def test_damaged_manifest_does_not_prevent_report(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
        assert runs.get(db, run.id or 0)
    folder = settings.runs / "1" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}", encoding="utf-8")

    assert "Training report" in report(client)


def test_axis_has_unit_of_method(client: TestClient, engine: Engine) -> None:
    """The loss of a preference method is no longer in nats per token."""
    with unit_of_work(engine) as db:
        make_finished_run(db, "answers")
        make_finished_run(db, "preferences").recipe = make_recipe(method="dpo")

    assert "Loss (nats/token)" in report(client, 1)
    assert "Loss (nats/token)" not in report(client, 2)


def test_validation_has_colour_of_its_run_and_a_dash(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [metrics_event(1, loss=2.0, eval_loss=2.5)], 100)

    html = report(client)
    legend = re.findall(r'<path d="[^"]*h20" class="line-(.)" [^>]*?(dasharray="[^"]*")?/>', html)
    assert legend[:2] == [("1", ""), ("1", 'dasharray="6 3"')]
    swatch = parse_page(html).one("h1").one("svg")
    assert swatch.attributes["class"] == "swatch series-1"


def test_values_of_each_chart_are_in_a_table(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        events = [metrics_event(1, loss=2.0, eval_loss=2.5), metrics_event(2, loss=1.5)]
        attempts.apply_events(db, run, events, 100)

    table = parse_page(report(client)).all("figure")[0].one("table")
    shown = [[one.text for one in row.all("th") + row.all("td")] for row in table.all("tr")]
    assert shown == [
        ["Step", "Training loss", "Validation loss"],
        ["1", "2", "2.5"],
        ["2", "1.5", formatting.NO_VALUE],
    ]
