"""Training methods: chosen by purpose in the form, named in REST, refused where rows do not fit."""

import io
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.methods import METHODS
from studio.settings import Settings
from studio.web.experiments import draft_form
from tests.support.page_reader import Node, field_value, form_fields, parse_page

TEXTS = "\n\n".join(f"Text {number} says that {number} is a number." for number in range(30))


@pytest.fixture
def texts(client: TestClient) -> int:
    """Add a dataset of plain text, and return its number."""
    files = {"file": ("notes.txt", io.BytesIO(TEXTS.encode()), "text/plain")}
    answer = client.post("/api/v1/datasets", files=files, data={"name": "notes"})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def form_of(client: TestClient, query: str = "") -> Node:
    return parse_page(client.get(f"/new{query}").text).one(id="form")


def goals(client: TestClient, query: str = "") -> Node:
    """Return the dialog that lists the methods and their presets."""
    return parse_page(client.get(f"/new{query}").text).one(id="choose-goal")


def chosen(form: Node) -> list[str]:
    """Return the titles of the pressed buttons: the method and the preset."""
    pressed = [one for one in form.all("button") if "aria-current" in one.attributes]
    return [one.one("strong").text for one in pressed]


@pytest.mark.parametrize("name", METHODS)
def test_form_opened_for_a_method_drafts_its_own_recipe(
    engine: Engine, settings: Settings, name: str
) -> None:
    """Nothing has been posted yet that names the method."""
    with unit_of_work(engine) as db:
        draft = draft_form.draft_from_preset(db, settings, METHODS[name], "full")
    filled = draft_form.apply_values(draft, {"base_model": "starter", "dataset": "mine"})

    assert filled.require_recipe().method == name


def test_model_of_every_kind_is_suggested(client: TestClient) -> None:
    """A fresh studio has none that reads images: one of the hub is suggested, and can be chosen."""
    form = form_of(client, "?method=vision")
    page = client.get("/new?method=vision").text

    assert field_value(form, "base_model") == "Qwen/Qwen3-VL-2B-Instruct"
    assert "2.13\u00a0B parameters" in page
    assert "downloaded first" in page or "to download" in page


def test_method_is_chosen_by_purpose(client: TestClient) -> None:
    groups = goals(client).all("div", class_="choices")

    purposes = [one.one("strong").text for one in groups[0].all("button")]
    assert purposes == [method.purpose for method in METHODS.values()]
    assert chosen(goals(client)) == ["Learn from answers", "Quick start"]
    assert chosen(goals(client, "?method=cpt")) == ["Learn from text", "Balanced LoRA"]


def test_changing_method_keeps_model_and_notes(client: TestClient) -> None:
    data = dict(form_fields(form_of(client))) | {"notes": "why", "precision": "fp32"}
    answer = client.post("/new/draft", data=data | {"do": "method:cpt"})
    form = parse_page(answer.text).one(id="form")

    kept = [field_value(form, name) for name in ("method", "notes", "precision", "base_model")]
    assert kept == ["cpt", "why", "fp32", "starter"]
    assert field_value(form, "data.packing") == "true"
    assert answer.headers["HX-Push-Url"] == "/new?method=cpt&preset=lora"


@pytest.mark.usefixtures("texts")
def test_a_data_set_that_fits_is_chosen(client: TestClient) -> None:
    data = dict(form_fields(form_of(client)))
    answer = client.post("/new/draft", data=data | {"do": "method:cpt"})
    other = dict(form_fields(parse_page(answer.text).one(id="form")))
    back = client.post("/new/draft", data=other | {"do": "method:sft"})

    kept = field_value(parse_page(back.text).one(id="form"), "dataset")
    assert (data["dataset"], other["dataset"], kept) == ("starter", "notes", "notes")
    assert field_value(form_of(client, "?method=cpt"), "dataset") == "notes"


def test_without_a_data_set_that_fits_none_is_chosen(client: TestClient) -> None:
    select = form_of(client, "?method=cpt").one(id="dataset")

    labels = [one.text for one in select.all("option")]
    assert labels == ["Choose a dataset", "starter (does not fit: conversations)"]


@pytest.mark.usefixtures("texts")
def test_compatible_datasets_are_listed_first(client: TestClient) -> None:
    labels = [one.text for one in form_of(client, "?method=cpt").one(id="dataset").all("option")]

    assert labels[0].startswith("notes (")
    assert "starter (does not fit: conversations)" in labels


def test_text_dataset_offers_both_methods(client: TestClient, texts: int) -> None:
    page = parse_page(client.get(f"/datasets/{texts}").text)

    links = {one.text: one.attributes["href"] for one in page.all("a")}
    assert links["Learn from text"] == f"/new?method=cpt&from=dataset:{texts}"
    assert links["Learn from answers"] == f"/new?method=sft&from=dataset:{texts}"


def test_text_dataset_preselects_continued_pretraining(client: TestClient, texts: int) -> None:
    assert field_value(form_of(client, f"?from=dataset:{texts}"), "method") == "cpt"
    assert field_value(form_of(client, f"?method=sft&from=dataset:{texts}"), "method") == "sft"


def submission(**recipe: Any) -> dict[str, Any]:  # noqa: ANN401 -- any field of a recipe
    return {"name": "texts", "recipe": {"base_model": "starter"} | recipe}


def submit(client: TestClient, **recipe: Any) -> Any:  # noqa: ANN401 -- JSON
    return client.post("/api/v1/experiments", json=submission(**recipe))


@pytest.mark.usefixtures("texts")
def test_api_accepts_method_and_defaults_to_sft(client: TestClient) -> None:
    named = submit(client, method="cpt", dataset="notes").json()["recipe"]
    plain = submit(client, dataset="starter").json()["recipe"]

    assert (named["method"], named["data"]["packing"], named["data"]["max_length"]) == (
        "cpt",
        True,
        2048,
    )
    assert (plain["method"], plain["data"]["packing"]) == ("sft", False)


def test_rest_says_what_a_method_is_for_and_reads(client: TestClient) -> None:
    found = client.get("/api/v1/methods/cpt").json()

    told = (found["purpose"], found["row_kinds"], found["objective"])
    assert told == ("Learn from text", ["text"], "eval_loss")


def test_error_path_omits_method(client: TestClient) -> None:
    answer = submit(client, method="cpt", dataset="notes", optimisation={"learning_rate": 2})

    (error,) = answer.json()["error"]["errors"]
    assert (answer.status_code, error["param"]) == (422, "recipe.optimisation.learning_rate")


def test_incompatible_dataset_is_rejected_with_hint(client: TestClient) -> None:
    answer = client.post("/api/v1/runs", json=submission(method="cpt", dataset="starter"))

    assert answer.status_code == 422
    assert (
        answer.json()["error"]["message"] == "Continued pre-training cannot train on conversations."
    )
    hint = "Choose another dataset, or: Learn from answers or "
    assert answer.json()["error"]["hint"].startswith(hint)


def add_labelled(client: TestClient, name: str, labels: list[str]) -> int:
    """Add a dataset of texts with these answers, and return its number."""
    rows = "".join(f"text {i},{label}\n" for i, label in enumerate(labels))
    files = {"file": ("rows.csv", io.BytesIO(b"prompt,answer\n" + rows.encode()), "text/csv")}
    answer = client.post("/api/v1/datasets", files=files, data={"name": name})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def test_answers_that_are_no_labels_are_refused_before_the_start(client: TestClient) -> None:
    number = add_labelled(client, "chat", [f"answer {i}" for i in range(40)])
    options = form_of(client, "?method=classify").one(id="dataset").all("option")
    answer = client.post("/api/v1/runs", json=submission(method="classify", dataset="chat"))

    assert "chat (does not fit: other answers)" in [one.text for one in options]
    page = parse_page(client.get(f"/datasets/{number}").text)
    assert "Learn labels" not in [one.text for one in page.all("a")]
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, "dataset")
    assert error["message"].startswith("The answers of this dataset are no labels")


def test_labels_are_offered_where_answers_are_labels(client: TestClient) -> None:
    number = add_labelled(client, "labels", ["good", "bad"] * 20)
    page = parse_page(client.get(f"/datasets/{number}").text)
    answer = client.post("/api/v1/runs", json=submission(method="classify", dataset="labels"))

    assert "Learn labels" in [one.text for one in page.all("a")]
    assert answer.status_code == 201, answer.text


@pytest.mark.usefixtures("texts")
def test_embedding_learning_rate_is_rejected_with_adapter(client: TestClient) -> None:
    rate = {"embedding_learning_rate": 1e-5}
    body = submission(method="cpt", dataset="notes", optimisation=rate)
    answer = client.post("/api/v1/runs", json=body)

    assert answer.json()["error"]["param"] == "optimisation.embedding_learning_rate"


@pytest.fixture
def ratings(client: TestClient) -> None:
    """Add a dataset of rated answers."""
    rows = [
        {
            "prompt": f"Question {number}?",
            "completion": f"Answer {number}.",
            "label": number % 2 > 0,
        }
        for number in range(30)
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    files = {"file": ("ratings.jsonl", io.BytesIO(content), "application/json")}
    answer = client.post("/api/v1/datasets", files=files, data={"name": "ratings"})
    assert answer.status_code == 201, answer.text


@pytest.mark.usefixtures("ratings")
def test_goal_made_for_the_data_is_suggested(client: TestClient) -> None:
    fit = parse_page(client.get("/new").text).one(id="goal-fit")
    assert fit.all("button") == []

    data = dict(form_fields(form_of(client))) | {"dataset": "ratings"}
    changed = parse_page(client.post("/new/advice", data=data).text)
    suggested = [one for one in changed.all("button") if one.text == "Learn from ratings"]
    assert [one.attributes["value"] for one in suggested] == ["method:kto"]

    other = parse_page(client.post("/new/draft", data=data | {"do": "method:kto"}).text)
    assert field_value(other.one(id="form"), "dataset") == "ratings"
    assert other.one(id="goal-fit").all("button") == []


@pytest.mark.usefixtures("ratings")
def test_data_that_does_not_fit_has_one_suggestion(client: TestClient) -> None:
    """The data itself offers to switch."""
    data = dict(form_fields(form_of(client, "?method=cpt"))) | {"dataset": "ratings"}
    changed = parse_page(client.post("/new/advice", data=data).text)
    switches = [
        one
        for one in changed.all("button")
        if one.attributes.get("value", "").startswith("method:")
    ]

    assert [one.text for one in switches] == ["Switch to: Learn from ratings"]
