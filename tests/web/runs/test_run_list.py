"""The list of runs, as a person sees it."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.services.runs import attempts, states
from studio.web.runs.run_table_page import PAGE_SIZE
from tests.support.factories import make_finished_run, make_run, make_running, metrics_event
from tests.support.page_reader import Node, parse_page

pytestmark = pytest.mark.smoke


def names(page: Node) -> list[str]:
    return [row.one("th", scope="row").one("a").text for row in page.one(id="rows").all("tr")]


def test_first_screen_starts_quick_try_or_takes_a_file(client: TestClient) -> None:
    page = parse_page(client.get("/").text)
    first = page.one(class_="hero")

    assert [form.attributes["action"] for form in first.all("form")] == [
        "/quick-start",
        "/datasets",
    ]
    assert [step.one("strong").text for step in first.all("li")] == ["Data", "Train", "Chat"]
    assert [title.text for title in page.all("h1")] == [first.one("h1").text]


def test_cancelled_runs_are_hidden_until_asked_for(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "done")
        for name in ("mistake", "another"):
            states.move(db, make_run(db, name), RunStatus.CANCELLED)

    page = parse_page(client.get("/").text)
    (link,) = [link for link in page.all("a") if link.text == "Show 2 cancelled"]
    assert names(page) == ["done"]
    assert names(parse_page(client.get(link.attributes["href"]).text)) == ["another", "mistake"]


def test_search_finds_cancelled_runs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        states.move(db, make_run(db, "mistake"), RunStatus.CANCELLED)

    assert names(parse_page(client.get("/?q=mistake").text)) == ["mistake"]


def test_actions_and_exports_of_whole_list_leave_cancelled_runs_out(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "done")
        states.move(db, make_run(db, "mistake"), RunStatus.CANCELLED)

    answer = client.post("/runs/bulk", data={"act": "tag", "tag": "good", "matching": "1", "q": ""})
    tagged = client.get("/api/v1/runs", params={"q": "tag:good"}).json()["data"]
    assert (answer.status_code, [run["name"] for run in tagged]) == (200, ["done"])
    assert "mistake" not in client.get("/runs.csv").text


def test_runs_are_listed_newest_first(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "older")
        make_run(db, "newer")

    assert names(parse_page(client.get("/").text)) == ["newer", "older"]


def test_row_shows_status_precision_and_metrics(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, "tone", precision="fp32")
        attempts.apply_events(
            db, run, [metrics_event(3, eval_loss=1.25, tokens_per_second=8200.0)], 10
        )

    row = parse_page(client.get("/").text).one("tr", **{"data-run": "1"})
    cells = [cell.text for cell in row.all("td")]
    assert cells[:6] == ["", "● running 30 %", "", "starter", "starter", "fp32"]
    assert (cells[6], cells[8]) == ("1.25", "8,200")


def test_nan_is_not_shown_as_zero(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [metrics_event(3, eval_loss=float("nan"))], 10)

    row = parse_page(client.get("/").text).one("tr", **{"data-run": "1"})
    assert [row.all("td")[i].text for i in (6, 8)] == ["NaN", "\N{EN DASH}"]


def test_running_run_has_card_with_progress(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db, "tone"), [metrics_event(4, loss=2.5)], 10)
        make_finished_run(db, "over")

    card = parse_page(client.get("/").text).one("article")
    assert (card.one("progress").attributes["value"], card.one(**{"data-put": "loss"}).text) == (
        "0.4000",
        "2.5",
    )


def test_search_filters_by_name(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "support tone")
        make_run(db, "invoices")

    assert names(parse_page(client.get("/?q=TONE").text)) == ["support tone"]


def test_status_filter_lists_matching_runs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "done")
        make_run(db, "waiting")

    assert names(parse_page(client.get("/?q=status:succeeded").text)) == ["done"]


def test_search_without_results_shows_message(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    page = parse_page(client.get("/?q=nothing").text)
    assert (page.one(class_="empty").one("h2").text, page.one(id="q").attributes["value"]) == (
        "No matching runs",
        "nothing",
    )


def test_older_runs_are_on_next_page(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for number in range(PAGE_SIZE + 1):
            make_run(db, f"run {number}")

    more = parse_page(client.get("/?q=run").text).one(id="more").one("a").attributes["href"]
    assert (more, names(parse_page(client.get(more).text))) == ("/?q=run&after=2", ["run 0"])


def test_row_can_be_fetched_alone(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        states.move(db, make_run(db), RunStatus.CANCELLED)

    answer = client.get("/runs/1/row", headers={"HX-Request-Type": "partial"})
    assert [node.attributes["data-status"] for node in parse_page(answer.text).all("tr")] == [
        "cancelled"
    ]


def test_html_in_run_name_is_escaped(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "<script>alert(1)</script>")

    page = parse_page(client.get("/").text)
    assert (names(page), [s for s in page.all("script") if "src" not in s.attributes]) == (
        ["<script>alert(1)</script>"],
        [],
    )
