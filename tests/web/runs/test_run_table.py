"""The table of runs on screen and over REST: searched, sorted, grouped, written on, exported."""

import csv
import io
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.services.runs import attempts, tags_notes
from tests.support.factories import make_finished_run, make_run, make_running, metrics_event
from tests.support.page_reader import Node, parse_page

PARTIAL = {"HX-Request-Type": "partial"}


@pytest.fixture
def three(engine: Engine) -> None:
    """Make alpha and beta, which have trained, and gamma, which waits."""
    with unit_of_work(engine) as db:
        for name, loss, mode in (("alpha", 0.5, "fp32"), ("beta", 0.25, "bf16")):
            run = make_finished_run(db, name, precision=mode)
            attempts.apply_events(db, run, [metrics_event(11, eval_loss=loss)], 2000)
        make_run(db, "gamma")


def names(page: Node) -> list[str]:
    return [row.all("a")[0].text for row in page.one(id="rows").all("th", scope="row")]


def rows(client: TestClient, path: str) -> list[str]:
    return names(parse_page(client.get(path).text))


@pytest.mark.usefixtures("three")
def test_search_terms_are_shown_as_removable_chips(client: TestClient) -> None:
    page = parse_page(client.get("/?q=status:succeeded eval_loss<0.4&sort=name").text)
    chips = page.one(class_="table-tools").all("span", class_="chip")

    assert names(page) == ["beta"]
    assert [(one.text, one.one("a").attributes["href"]) for one in chips] == [
        ("status:succeeded ✕", "/?q=eval_loss<0.4&sort=name"),
        ("eval_loss<0.4 ✕", "/?q=status:succeeded&sort=name"),
    ]


@pytest.mark.usefixtures("three")
def test_invalid_search_term_is_marked(client: TestClient) -> None:
    page = parse_page(client.get("/?q=alpha stauts:failed").text)
    told = page.one(id="wrong")

    assert told.one("mark").text == "stauts:failed"
    assert told.one(class_="error").text.startswith(
        "There is no field named stauts. Did you mean status?"
    )
    assert page.one(id="q").attributes["value"] == "alpha stauts:failed"


@pytest.mark.usefixtures("three")
def test_invalid_search_keeps_table(client: TestClient) -> None:
    answer = client.get("/?q=alpha stauts:", headers={"HX-Request": "true"})

    assert (answer.status_code, answer.headers["HX-Reswap"]) == (200, "none")


@pytest.mark.usefixtures("three")
def test_column_header_sorts_table(client: TestClient) -> None:
    page = parse_page(client.get("/?sort=eval_loss").text)
    head = next(one for one in page.all("th") if "aria-sort" in one.attributes)

    assert (head.attributes["aria-sort"], names(page)) == ("ascending", ["beta", "alpha", "gamma"])
    assert rows(client, head.one("a").attributes["href"]) == ["alpha", "beta", "gamma"]


@pytest.mark.usefixtures("three")
def test_columns_can_be_added_moved_and_removed(client: TestClient) -> None:
    page = parse_page(client.get("/?cols=status,eval_loss&add=adapter.r").text)
    heads = [one.text for one in page.one("thead").all("th")][1:]
    menu = page.one(id="columns").all("li")

    assert heads == ["Name", "Status", "Validation loss", "LoRA rank"]
    left, without = (one.attributes["href"] for one in menu[3].all("a"))
    assert left == "/?cols=name,status,adapter.r,eval_loss"
    assert without == "/?cols=name,status,eval_loss"


@pytest.mark.usefixtures("three")
def test_baseline_shows_deltas_and_differences(client: TestClient) -> None:
    page = parse_page(client.get("/?base=1&cols=precision,eval_loss&sort=name").text)
    deltas = [one.text for one in page.all("span", class_="delta")]
    differing = [one.text for one in page.all("td", class_="differs")]

    assert names(page) == ["alpha", "beta", "gamma"]
    assert (deltas, differing) == (["\N{MINUS SIGN}0.25"], ["bf16", "bf16"])


@pytest.mark.usefixtures("three")
def test_groups_expand_to_runs(client: TestClient) -> None:
    page = parse_page(client.get("/?group=precision&cols=eval_loss&sort=eval_loss").text)
    folds = page.all("a", class_="fold")
    opened = parse_page(client.get(folds[0].attributes["href"]).text)

    assert [one.text for one in page.all("tr", class_="bunch")] == [
        "▸ bf16 2 runs 0.25",
        "▸ fp32 1 run 0.5",
    ]
    assert names(opened) == ["▾ bf16", "beta", "gamma", "▸ fp32"]


@pytest.mark.usefixtures("three")
def test_sparkline_has_text_alternative(client: TestClient) -> None:
    spark = parse_page(client.get("/?q=alpha").text).one("svg", class_="spark")

    assert spark.attributes["aria-label"] == "Training loss: from 2.9 to 2"
    assert len(spark.one("polyline").attributes["points"].split()) == 10


@pytest.mark.usefixtures("three")
def test_row_can_be_edited_in_place(client: TestClient) -> None:
    editor = parse_page(client.get("/runs/1/words?cols=tag", headers=PARTIAL).text)
    form = editor.one("form").attributes["hx-post"]
    written = {"name": "omega", "tags": "good, to show", "notes": "Calm.\r\nLouder at the end."}
    answer = parse_page(client.post(form, data=written, headers=PARTIAL).text)

    assert answer.one("th").one("a").text == "omega"
    assert [one.text for one in answer.all("span", class_="chip")] == ["good", "to show"]
    assert client.get("/api/v1/runs/1").json()["notes"] == "Calm.\nLouder at the end."


@pytest.mark.usefixtures("three")
def test_rejected_edit_keeps_input_in_row(client: TestClient) -> None:
    written = {"name": "omega", "tags": 'a"b', "notes": ""}
    answer = client.post("/runs/1/words", data=written, headers=PARTIAL)

    page = parse_page(answer.text)
    assert (answer.status_code, page.one("input", name="name").attributes["value"]) == (
        422,
        "omega",
    )
    assert client.get("/api/v1/runs/1").json()["name"] == "alpha"


@pytest.mark.usefixtures("three")
def test_many_runs_can_be_trashed_and_restored(client: TestClient) -> None:
    data = {"act": "trash", "run": ["1", "2"]}
    answer = client.post("/runs/bulk", data=data, headers=PARTIAL)
    undo = parse_page(answer.text).one("form")
    sent = [one.attributes["value"] for one in undo.all("input", name="run")]

    assert answer.headers["HX-Trigger"] == "table-changed"
    assert (rows(client, "/"), rows(client, "/?q=is:trashed")) == (["gamma"], ["beta", "alpha"])
    act = undo.one("button").attributes["value"]
    client.post("/runs/bulk", data={"act": act, "run": sent}, headers=PARTIAL)
    assert rows(client, "/") == ["gamma", "beta", "alpha"]


@pytest.mark.usefixtures("three")
def test_all_matching_runs_can_be_changed_and_undone(client: TestClient) -> None:
    data = {"act": "tag", "tag": "seen", "matching": "2", "q": "status:succeeded", "run": "3"}
    undo = parse_page(client.post("/runs/bulk", data=data, headers=PARTIAL).text).one("form")
    left = rows(client, "/?q=-tag:seen")
    sent = {one.attributes["name"]: one.attributes["value"] for one in undo.all("input")}
    act = undo.one("button").attributes["value"]
    client.post("/runs/bulk", data=sent | {"act": act}, headers=PARTIAL)

    assert (left, sent["run"]) == (["gamma"], "1,2")
    assert rows(client, "/?q=-tag:seen") == ["gamma", "beta", "alpha"]


@pytest.mark.usefixtures("three")
def test_bulk_action_is_rejected_when_matches_changed(client: TestClient) -> None:
    data = {"act": "trash", "matching": "1", "q": "status:succeeded"}
    answer = client.post("/runs/bulk", data=data, headers=PARTIAL)

    assert (answer.status_code, len(rows(client, "/"))) == (409, 3)
    assert "2 runs match the query now, not 1." in answer.text


@pytest.mark.usefixtures("three")
def test_bulk_trash_is_all_or_nothing(client: TestClient) -> None:
    answer = client.post("/runs/bulk", data={"act": "trash", "run": ["1", "3"]}, headers=PARTIAL)

    assert (answer.status_code, len(rows(client, "/"))) == (409, 3)


@pytest.mark.parametrize(
    ("act", "place"),
    [("compare", "/compare?runs=1,2"), ("base", "/?q=a&base=1"), ("archive", "/?q=a")],
)
@pytest.mark.usefixtures("three")
def test_bulk_actions_redirect_to_result(client: TestClient, act: str, place: str) -> None:
    answer = client.post(
        "/runs/bulk",
        data={"act": act, "run": ["1", "2"]},
        headers={"Referer": "http://testserver/?q=a"},
        follow_redirects=False,
    )

    assert (answer.status_code, answer.headers["Location"]) == (303, place)


@pytest.mark.usefixtures("three")
def test_trashed_run_is_labelled_and_can_be_restored(client: TestClient) -> None:
    page = client.post("/runs/1/trash")
    again = client.post("/runs/1/restore")

    assert ("Moved to the trash" in page.text, "Moved to the trash" in again.text) == (True, False)


@pytest.mark.usefixtures("three")
def test_view_can_be_saved_opened_and_deleted(client: TestClient) -> None:
    saved = client.post(
        "/views", data={"name": "best", "query": "sort=eval_loss&q=status:succeeded"}
    )
    (link,) = parse_page(saved.text).one(id="views").all("a")

    assert (link.text, rows(client, link.attributes["href"])) == ("best", ["beta", "alpha"])
    client.post("/views/1/delete")
    assert client.get("/api/v1/views").json()["data"] == []


VIEW = "sort=eval_loss&cols=status,eval_loss,loss.curve,tag&q=status:succeeded"


@pytest.mark.usefixtures("three")
def test_exports_match_shown_table(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        tags_notes.update(db, 1, name="=al_pha & co", tags=["a|b"])
    page = client.get(f"/?{VIEW}")
    assert names(parse_page(page.text)) == ["beta", "=al_pha & co"]

    table = list(csv.reader(io.StringIO(client.get(f"/runs.csv?{VIEW}").text)))
    told: list[dict[str, Any]] = json.loads(client.get(f"/runs.json?{VIEW}").text)
    markdown = client.get(f"/runs.md?{VIEW}").text.splitlines()
    latex = client.get(f"/runs.tex?{VIEW}").text.splitlines()
    assert [row[:4] for row in table] == [
        ["id", "name", "status", "eval_loss"],
        ["2", "beta", "succeeded", "0.25"],
        ["1", "'=al_pha & co", "succeeded", "0.5"],
    ]
    assert [(row["id"], row["eval_loss"], row["tag"]) for row in told] == [
        (2, 0.25, []),
        (1, 0.5, ["a|b"]),
    ]
    assert told[0]["loss.curve"] == [2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.2, 2.1, 2.0]
    assert markdown[0] == "| Run | Name | Status | Validation loss | Training loss, curve | Tags |"
    assert markdown[3] == "| #1 | =al\\_pha & co | succeeded | 0.5 | █▇▆▆▅▄▃▃▂▁ | a\\|b |"
    assert latex[0] == r"\begin{tabular}{rllrl}"
    assert latex[5] == r"\#1 & =al\_pha \& co & succeeded & 0.5 & a|b \\"


@pytest.mark.usefixtures("three")
def test_export_of_groups_has_mean_deviation_and_count(client: TestClient) -> None:
    table = client.get("/runs.csv?group=status&cols=eval_loss&q=status:succeeded").text

    assert table.splitlines()[0] == "status,runs,eval_loss,eval_loss_sd,eval_loss_n"
    assert table.splitlines()[1].startswith("succeeded,2,0.375,0.1767766")


def test_unknown_export_format_returns_404(client: TestClient) -> None:
    assert client.get("/runs.xlsx").status_code == 404


@pytest.mark.usefixtures("three")
def test_api_filters_sorts_and_paginates_runs(client: TestClient) -> None:
    first = client.get("/api/v1/runs?q=status:succeeded&sort=eval_loss&limit=1").json()
    after = first["next_after"]
    second = client.get(f"/api/v1/runs?q=status:succeeded&sort=eval_loss&after={after}").json()

    assert [one["name"] for one in (*first["data"], *second["data"])] == ["beta", "alpha"]
    assert (first["has_more"], second["has_more"]) == (True, False)


def test_invalid_query_is_rejected_by_api(client: TestClient) -> None:
    answer = client.get("/api/v1/runs?q=stauts:failed")

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "q")


@pytest.mark.usefixtures("three")
def test_api_edits_archives_trashes_and_restores_runs(client: TestClient) -> None:
    changes = {"notes": "n", "tags": ["t"], "is_archived": True, "is_trashed": True}
    told = client.patch("/api/v1/runs/1", json=changes).json()
    bulk = {"runs": [1, 2], "act": "restore"}

    assert (told["notes"], told["tags"]) == ("n", ["t"])
    assert None not in (told["archived_at"], told["deleted_at"])
    assert client.post("/api/v1/bulk", json=bulk).json() == {"changed": [1]}


def test_api_lists_all_fields(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db), [metrics_event(1, luck=1.0)], 1)
    told = {one["name"]: one for one in client.get("/api/v1/fields").json()["data"]}

    assert told["precision"] == {"name": "precision", "title": "Precision", "kind": "choice"}
    assert {"luck", "luck.max", "eval_loss.best", "optimisation.learning_rate"} <= set(told)
    assert "luck.best" not in told


def test_api_creates_and_deletes_views(client: TestClient) -> None:
    made = client.post("/api/v1/views", json={"name": "mine", "query": "q=a"})

    assert (made.status_code, made.json()["query"]) == (201, "q=a")
    assert client.delete("/api/v1/views/1").status_code == 204
    assert client.delete("/api/v1/views/1").status_code == 404


@pytest.mark.usefixtures("three")
def test_search_suggestions_are_offered(client: TestClient) -> None:
    found = parse_page(client.get("/completions", params={"q": "alpha status:can", "at": 16}).text)
    box, offer = found.one(role="listbox"), found.one(role="option")

    assert (box.attributes["data-start"], box.attributes["data-end"]) == ("13", "16")
    assert (offer.attributes["data-text"], offer.text) == ("cancelled ", "cancelled")
