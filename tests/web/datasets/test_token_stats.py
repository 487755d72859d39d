"""The statistics of a data set: its page, the API, and what they say of a recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import select

from studio.db.session import read_session, unit_of_work
from studio.db.tables import DatasetVersion
from studio.db.tasks import Task
from studio.services.models import models
from studio.settings import Settings
from tests.support import factories, token_stats, tokenizer_services
from tests.support.page_reader import form_fields, parse_page

PAGE = "/datasets/1/stats"
API = "/api/v1/datasets/1/stats"
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
ASKED: dict[str, str | int] = {"model": "spoken"}

# Of single bytes, the rows have 41, 42 and 43 tokens; their answers begin at the 38th or 39th.
ROWS, TOKENS, LEARNT = 40, 9 * 41 + 42 + 30 * 43, 9 * 3 + 31 * 4


@pytest.fixture(autouse=True)
def model(engine: Engine, tmp_path: Path) -> Path:
    """Add a model with a chat template."""
    folder = tokenizer_services.write_model(tmp_path / "spoken")
    with unit_of_work(engine) as db:
        models.add(db, "spoken", str(folder), kind="folder")
    return folder


@pytest.fixture
def known(engine: Engine, settings: Settings) -> None:
    """Have the rows counted for it."""
    with unit_of_work(engine) as db:
        token_stats.count_rows(db, settings, "spoken")


def shown(client: TestClient, **asked: str | int) -> str:
    return (
        parse_page(client.get(PAGE, params=ASKED | asked).raise_for_status().text)
        .one(id="stats")
        .text
    )


def told(client: TestClient, **asked: str | int) -> dict[str, Any]:
    stats: dict[str, Any] = client.get(API, params=ASKED | asked).raise_for_status().json()["stats"]
    return stats


def planned(client: TestClient, max_length: int, **changes: str) -> dict[str, Any]:
    data = {"max_length": max_length}
    recipe = {"dataset": "starter", "base_model": "spoken", "data": data, **changes}
    answer = client.post("/api/v1/plan", json={"recipe": recipe})
    plan: dict[str, Any] = answer.raise_for_status().json()
    return plan


def test_uncounted_rows_are_counted_with_one_click(client: TestClient, engine: Engine) -> None:
    page = parse_page(client.get(PAGE, params=ASKED).text)
    form = next(one for one in page.one(id="stats").all("form") if one.text.endswith("tokens"))
    answer = client.post(PAGE, data=dict(form_fields(form)), follow_redirects=False)

    assert answer.headers["location"].startswith(f"{PAGE}?version=1&model=spoken&")
    with read_session(engine) as db:
        assert [chore.kind for chore in db.exec(select(Task))] == ["stats"]
    assert "Waiting in the queue" in shown(client)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        (43, "None of 40 rows will be truncated to 43 tokens."),
        (42, "30 of 40 rows will be truncated to 42 tokens."),
        (38, "40 of 40 rows will be truncated to 38 tokens, 30 of them before their answer."),
    ],
)
def test_changing_max_length_needs_no_recount(
    client: TestClient, engine: Engine, at: int, sentence: str
) -> None:
    assert sentence in shown(client, max_length=at)
    assert told(client, max_length=at)["sentence"] == sentence
    with read_session(engine) as db:
        assert len(db.exec(select(Task)).all()) == 1


@pytest.mark.usefixtures("known")
def test_truncation_updates_without_page_reload(client: TestClient) -> None:
    answer = client.get(PAGE, params=ASKED | {"max_length": "42", "step": "on"}, headers=HTMX)

    assert "<html" not in answer.text
    assert answer.headers["HX-Replace-Url"] == (
        f"{PAGE}?version=1&model=spoken&max_length=42&chat_template=model&split=train&row=2&q="
    )


@pytest.mark.usefixtures("known")
def test_histogram_is_also_shown_as_table(client: TestClient) -> None:
    page = parse_page(client.get(PAGE, params=ASKED | {"max_length": "42"}).text)
    table = page.one(class_="histogram").one(class_="grid")

    assert [[cell.text for cell in row.all()] for row in table.all("tr")[1:]] == [
        ["41 to 48", "40", "30"]
    ]


@pytest.mark.usefixtures("known")
def test_histogram_has_its_values_for_files_and_zoom(client: TestClient) -> None:
    page = parse_page(client.get(PAGE, params=ASKED | {"max_length": "42"}).text)
    plot = page.one("div", **{"data-drawing": "row-lengths-train"})

    assert json.loads(plot.attributes["data-cells"] or "") == [
        ["Shortest", "Longest", "Rows", "Truncated"],
        [41, 48, 40, 30],
    ]
    assert json.loads(plot.attributes["data-edges"] or "") == ["41", "48"]


@pytest.mark.usefixtures("known")
def test_api_returns_all_statistics(client: TestClient) -> None:
    stats = told(client, max_length=42)
    part = stats["train"]

    assert stats["validation"] is None
    assert (part["rows"], part["tokens"], part["learnt"]) == (ROWS, TOKENS, LEARNT)
    assert part["roles"]["assistant"] == {"tokens": LEARNT, "learnt": LEARNT}
    assert part["lengths"] == {
        "shortest": 41,
        "median": 43,
        "mean": 43,
        "p95": 43,
        "p99": 43,
        "longest": 43,
    }
    assert part["cut"] == {
        "at": 42,
        "rows": 30,
        "tokens": 30,
        "learnt": 0,
        "emptied": 0,
        "is_exact": True,
    }


def test_api_starts_count_and_reports_its_task(client: TestClient) -> None:
    before = client.get(API, params=ASKED)
    begun = client.post(API, json=ASKED)
    again = client.get(API, params=ASKED)

    assert (before.status_code, begun.status_code, again.status_code) == (404, 202, 202)
    assert begun.json()["chore"]["id"] == again.json()["chore"]["id"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"model": "/nowhere"}, 422),
        ({"model": "spoken", "max_length": "0"}, 422),
        ({"model": "spoken", "version": "7"}, 404),
        ({"model": "spoken", "colour": "red"}, 422),
    ],
)
def test_invalid_parameters_are_rejected(
    client: TestClient, asked: dict[str, str], status: int
) -> None:
    assert client.get(API, params=asked).status_code == status


def test_pairs_that_truncation_makes_equal_are_counted_where_they_are_compared(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    """In CSV as spreadsheets save it: UTF-16, tabs, and capital letters in the header."""
    lines = ["Prompt\tChosen\tRejected"]
    lines += [f"{'Où ça ? ' * (9 * (i == 3))}Which {i}?\tThis, yes.\tThis, no." for i in range(6)]
    file = ("pairs.csv", "\r\n".join(lines).encode("utf-16"))
    made = client.post("/api/v1/datasets", files={"file": file}).raise_for_status().json()
    with unit_of_work(engine) as db:
        token_stats.count_rows(db, settings, "spoken", dataset=made["id"], with_bad=True)
    recipe = {"method": "dpo", "dataset": "pairs", "base_model": "spoken"}

    answers = [
        client.post("/api/v1/plan", json={"recipe": recipe | {"data": {"max_length": length}}})
        for length in (200, 110)
    ]
    page = client.get(f"/datasets/{made['id']}/stats", params=ASKED | {"max_length": 110}).text

    whole, cut = ("\n".join(answer.raise_for_status().json()["warnings"]) for answer in answers)
    lost = (
        "1 of 6 rows will be truncated to 110 tokens; in 1 of them, no difference between the "
        "answers is left, so training leaves these rows out."
    )
    assert made["kind"] == "preference"
    assert "truncated" not in whole
    assert lost in cut
    assert lost in parse_page(page).one(id="stats").text


def test_invalid_max_length_shows_error(client: TestClient) -> None:
    assert "Enter a number from 1 to 1,048,576." in shown(client, max_length="many")


@pytest.mark.usefixtures("known")
def test_changed_tokenizer_needs_recount(client: TestClient, model: Path) -> None:
    tokenizer_services.write_model(model, template="{{ messages[0].content }}")

    assert client.get(API, params=ASKED).status_code == 404


@pytest.mark.usefixtures("known")
def test_plan_warns_about_truncated_rows(client: TestClient) -> None:
    plan = planned(client, 38)

    assert plan["warnings"][0] == (
        "40 of 40 rows will be truncated to 38 tokens, 30 of them before their answer."
    )
    assert plan["refusals"] == []
    assert planned(client, 64)["warnings"] == planned(client, 128)["warnings"]


@pytest.mark.usefixtures("known")
def test_max_length_without_trained_tokens_is_rejected_with_fix(
    client: TestClient,
) -> None:
    (refused,) = planned(client, 37)["refusals"]
    recipe = {"dataset": "starter", "base_model": "spoken", "data": {"max_length": 37}}
    started = client.post("/api/v1/runs", json={"name": "in vain", "recipe": recipe})

    assert refused["message"] == (
        "No tokens of the training data would be trained on: rows are truncated to 37 tokens, "
        "before their answers begin."
    )
    assert (refused["param"], refused["repair"]) == (
        "data.max_length",
        {"data": {"max_length": 64}},
    )
    assert (started.status_code, started.json()["error"]["param"]) == (422, "data.max_length")


@pytest.mark.usefixtures("known")
def test_form_warns_about_truncation_and_links_to_statistics(client: TestClient) -> None:
    form = dict(form_fields(parse_page(client.get("/new?preset=full").text).one(id="form")))
    form |= {"base_model": "spoken", "data.max_length": "38"}

    assert "30 of them before their answer" in client.post("/new/advice", data=form).text
    assert f"{PAGE}?version=1&amp;model=spoken" in client.post("/new/sight", data=form).text


@pytest.mark.usefixtures("known")
def test_labels_are_learned_however_short_a_text_is(client: TestClient) -> None:
    plan = planned(client, 37, method="classify")

    assert "40 of 40 rows will be truncated to 37 tokens." in plan["warnings"]
    assert [one for one in plan["refusals"] if one["param"] == "data.max_length"] == []


def test_rows_failing_chat_template_block_run(
    client: TestClient, engine: Engine, settings: Settings, model: Path
) -> None:
    strict = "{% if '7' in messages[0].content %}{{ raise_exception('No sevens') }}{% endif %}"
    tokenizer_services.write_model(model, template=strict + tokenizer_services.CHATML)
    with unit_of_work(engine) as db:
        token_stats.count_rows(db, settings, "spoken")
    (refused,) = planned(client, 64)["refusals"]

    assert refused["message"] == (
        "Row 8 of the training data, and 3 more cannot be formatted with this chat template: No "
        "sevens."
    )
    assert refused["repair"] == {"data": {"chat_template": "chatml"}}
    assert "No sevens: 4 rows of the training data." in shown(client)


def test_training_and_validation_are_shown_side_by_side(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in factories.ROWS[:3])
    (settings.datasets / "1" / "1" / "validation.jsonl").write_text(rows, encoding="utf-8")
    with unit_of_work(engine) as db:
        db.exec(select(DatasetVersion)).one().validation_rows = 3
    with unit_of_work(engine) as db:
        token_stats.count_rows(db, settings, "spoken")
    page = parse_page(client.get(PAGE, params=ASKED).text)

    table = page.one(id="stats").all(class_="sides")[0]
    tokens, learnt = ([cell.text for cell in row.all("td")] for row in table.all("tr")[2:4])
    assert tokens == ["1,701", "123"]
    assert learnt == ["151 8.88 %", "9 7.32 %"]
    assert len(page.all(class_="histogram")) == 2
    assert told(client)["validation"]["tokens"] == 123


@pytest.mark.parametrize(
    ("asked", "row", "says"),
    [
        ({}, "1", "What is 0 and one?"),
        ({"row": "7", "step": "on"}, "8", "What is 7 and one?"),
        ({"row": "1", "step": "back"}, "1", "What is 0 and one?"),
        ({"row": "999"}, "40", "What is 39 and one?"),
        ({"row": "none"}, "1", "What is 0 and one?"),
        ({"q": "IS 2", "step": "first", "row": "9"}, "3", "What is 2 and one?"),
        ({"q": "is 2", "row": "3", "step": "on"}, "21", "What is 20 and one?"),
        ({"q": "is 2", "row": "21", "step": "back"}, "3", "What is 2 and one?"),
        ({"q": "is 2", "row": "4"}, "21", "What is 20 and one?"),
        ({"q": "is 2", "row": "3", "step": "back"}, "3", "No row before row 3 has “is 2”."),
        ({"q": "is 2", "row": "30", "step": "on"}, "30", "No row after row 30 has “is 2”."),
        ({"q": "is 2", "row": "31"}, "31", "No row from row 31 onward has “is 2”."),
        ({"q": "zebra", "step": "first"}, "1", "No row has “zebra”."),
        ({"split": "validation"}, "1", "This split has no rows."),
    ],
)
def test_rows_can_be_browsed_and_searched(
    client: TestClient, asked: dict[str, str], row: str, says: str
) -> None:
    page = parse_page(client.get(PAGE, params={**ASKED, **asked}).text)

    assert page.one(id="leaf-row").attributes["value"] == row
    assert says in page.one(id="stats").text


def test_row_links_to_its_token_preview(client: TestClient) -> None:
    answer = client.get(PAGE, params=ASKED | {"row": "5", "max_length": "50"})

    assert (
        "/datasets/1/sight?model=spoken&amp;chat_template=model&amp;max_length=50"
        "&amp;split=train&amp;row=5"
    ) in answer.text
