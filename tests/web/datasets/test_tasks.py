"""Tasks, from the file to the rows that graders read: pages, REST, and what cannot use them."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.methods import METHODS, readers
from studio.services.models import models
from studio.settings import Settings
from tests.support import evaluated_runs, tokenizer_services
from tests.support.factories import make_finished_run
from tests.support.page_reader import Node, parse_page
from tests.web.datasets.test_mapping import HTMX, draft, form_of, preview, screen

API = "/api/v1/datasets"
ROWS = [
    {
        "messages": [{"role": "user", "content": f"What is {n} plus {n}?"}],
        "reference": {"sum": 2 * n, "words": ["zwölf", "十二"]},
        "level": n % 3 if n else None,
    }
    for n in range(12)
]
SCHOOL = "question,answer,grade\n" + "".join(
    f"Ann has {n} pens and buys {n}. How many now?,{2 * n},{n % 4}\n" for n in range(12)
)


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def add(client: TestClient, content: str = "", name: str = "sums") -> int:
    files = {"file": (f"{name}.jsonl", (content or lines(ROWS)).encode())}
    number: int = client.post(API, files=files).raise_for_status().json()["id"]
    return number


def shown_rows(page: Node) -> list[Node]:
    return page.one("section", **{"aria-labelledby": "rows"}).one("ol").all("li", class_="card")


def test_rows_are_shown_with_the_columns_for_graders(client: TestClient) -> None:
    page = parse_page(client.get(f"/datasets/{add(client)}").text)
    first, second, *_others = shown_rows(page)

    assert "What is 0 plus 0?" in first.one("div", class_="user").text
    assert [one.text for one in second.all("dt")] == ["reference", "level"]
    assert [one.text for one in second.all("dd")] == [
        '{"sum": 2, "words": ["zwölf", "十二"]}',
        "1",
    ]
    assert first.all("dd")[1].text == "–"  # noqa: RUF001 -- as shown


def test_rest_returns_them_with_their_types(client: TestClient) -> None:
    number = add(client)
    dataset = client.get(f"{API}/{number}").json()
    row = client.get(f"{API}/{number}/rows?limit=2").json()["data"][1]

    assert (dataset["kind"], dataset["shape"], dataset["train_rows"]) == ("task", "task", 12)
    assert row["item"] == {"reference": ROWS[1]["reference"], "level": 1}
    assert [turn["content"] for turn in row["messages"]] == ["What is 1 plus 1?"]


def test_rows_are_downloaded_and_searched(client: TestClient) -> None:
    number = add(client)
    content = client.get(f"/datasets/{number}/versions/1/train.jsonl").text

    assert [json.loads(line)["item"]["reference"] for line in content.splitlines()] == [
        row["reference"] for row in ROWS
    ]
    for words, found in (("3 plus 3", 1), ("zwölf", 10)):
        page = parse_page(client.get(f"/datasets/{number}?q={words}").text)
        assert len(shown_rows(page)) == found


def test_rows_without_a_value_are_reported_and_can_be_excluded(client: TestClient) -> None:
    number = add(client)
    page = parse_page(client.get(f"/datasets/{number}?finding=empty_columns").text)
    message = "Graders that read level cannot score these rows: they have no value there."

    assert message in page.text
    assert len(shown_rows(page)) == 1
    client.post(f"/datasets/{number}/versions/1/leave-out?code=empty_columns")
    assert client.get(f"{API}/{number}").json()["train_rows"] == 11


def test_type_of_a_file_can_be_changed_to_tasks(client: TestClient) -> None:
    """Questions with answers, as GSM8K has them."""
    number = draft(client, SCHOOL)
    form = form_of(screen(client, number)) | {"shape": "task"}
    drawn = client.post(f"/datasets/{number}/mapping/form", data=form, headers=HTMX).text
    form = dict(form_of(parse_page(f"<div>{drawn}</div>")))

    assert [form[f"role.{i}"] for i in range(3)] == ["prompt", "item", "item"]
    assert "For graders" in preview(client, number, form)
    client.post(f"/datasets/{number}/mapping", data=form | {"role.2": ""})
    row = client.get(f"{API}/{number}/rows?limit=4").json()["data"][3]
    assert row["item"] == {"answer": "6"}


def test_column_set_aside_stays_aside(client: TestClient) -> None:
    number = draft(client, SCHOOL)
    form = form_of(screen(client, number)) | {"shape": "task"}
    drawn = client.post(f"/datasets/{number}/mapping/form", data=form, headers=HTMX).text
    form = form_of(parse_page(f"<div>{drawn}</div>")) | {"role.1": "", "role.2": ""}
    again = client.post(f"/datasets/{number}/mapping/form", data=form, headers=HTMX).text

    roles = form_of(parse_page(f"<div>{again}</div>"))
    assert [roles[f"role.{i}"] for i in range(3)] == ["prompt", "", ""]


def test_conversations_can_be_read_as_tasks(client: TestClient) -> None:
    turns = [{"role": "user", "content": "0 plus 0?"}, {"role": "assistant", "content": "0"}]
    answered = {"messages": turns, "source": "s"}
    number = draft(client, lines([answered] * 3), "talks.jsonl")
    form = form_of(screen(client, number)) | {"shape": "task"}
    drawn = client.post(f"/datasets/{number}/mapping/form", data=form, headers=HTMX).text

    client.post(
        f"/datasets/{number}/mapping", data=form_of(parse_page(f"<div>{drawn}</div>"))
    ).raise_for_status()
    row = client.get(f"{API}/{number}/rows?limit=1").json()["data"][0]
    assert row["item"] == {"source": "s", "reference_answer": "0"}
    assert [turn["role"] for turn in row["messages"]] == ["user"]


def test_prompt_must_have_a_column(client: TestClient) -> None:
    number = draft(client, SCHOOL)
    form = form_of(screen(client, number)) | {"shape": "task"}
    form |= {f"role.{i}": "item" for i in range(3)}

    answer = client.post(f"/datasets/{number}/mapping", data=form)
    assert answer.status_code == 422
    assert "No column selected for: prompt." in parse_page(answer.text).text


def test_versions_say_what_changed(client: TestClient) -> None:
    number = add(client)
    mapping = client.get(f"{API}/{number}/versions").json()["data"][0]["mapping"]
    mapping["roles"]["item"] = ["reference"]
    client.post(f"{API}/{number}/versions", json={"mapping": mapping}).raise_for_status()

    assert (
        "For graders: reference instead of reference and level."
        in parse_page(client.get(f"/datasets/{number}").text).text
    )


def test_method_that_needs_answers_refuses_them_in_words(client: TestClient) -> None:
    number = add(client)
    fitting = [method.purpose for method in readers("task")]
    others = (method for method in METHODS.values() if "task" not in method.trains_on)
    for method in (one for one in others if "causal" in one.trainable_kinds):
        if method.name == "distil":
            continue  # What it lacks first is a teacher.
        recipe = {"method": method.name, "base_model": "starter", "dataset": "sums"}
        answer = client.post("/api/v1/runs", json={"name": "sums", "recipe": recipe})
        error = answer.json()["error"]

        assert answer.status_code == 422
        assert error["message"] == f"{method.title} cannot train on tasks without answers."
        assert error["hint"] == (
            f"Choose another dataset, or: {' or '.join(fitting)}."
            if fitting
            else "Choose another dataset."
        )
    for url in (f"/new?from=dataset:{number}", "/datasets", f"/datasets/{number}/stats", "/new"):
        assert client.get(url).status_code == 200


def test_runs_that_write_can_be_evaluated_on_them(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    add(client)
    with unit_of_work(engine) as db:
        evaluated_runs.lay_out(db, settings, make_finished_run(db, adapter={"kind": "lora"}))

    page = parse_page(client.get("/runs/1/evaluation").text)
    answer = client.post("/api/v1/runs/1/evaluations", json={"dataset": "sums"})
    assert "sums" in [one.text for one in page.one("select", name="dataset").all("option")]
    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize("path", ["mapping", "sight", "stats"])
def test_pages_of_the_dataset_open(client: TestClient, path: str) -> None:
    assert client.get(f"/datasets/{add(client)}/{path}").status_code == 200


def test_tokens_of_the_prompt_are_shown_and_none_is_trained_on(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    number, folder = add(client), settings.home / "spoken"
    tokenizer_services.write_model(folder)
    with unit_of_work(engine) as db:
        models.add(db, "spoken", str(folder), kind="folder")
    with tokenizer_services.run_tokenizer_service(settings):
        page = parse_page(client.get(f"/datasets/{number}/sight?model=spoken&row=2").text)

    region = page.one("div", class_="tokens")
    assert [one.text for one in region.all("h3")] == ["user", "assistant"]
    assert "W h a t i s 1 p l u s 1 ?" in region.text
    assert not region.all("mark")
    assert "· 0 trained on ·" in page.text
    assert "and graders score them." in page.text
