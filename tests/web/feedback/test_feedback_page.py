"""The page of feedback: what was said, what to know about it, and datasets by one press."""

from typing import Any

from fastapi.testclient import TestClient

from tests.support.page_reader import parse_page

API = "/api/v1/feedback"


def say(client: TestClient, number: int = 0, **changes: Any) -> int:  # noqa: ANN401 -- any field
    prompt = [{"role": "user", "content": f"Question {number}?"}]
    body = {"prompt": prompt, "answer": "Yes, certainly.", "rejected": "No."} | changes
    said = client.post(API, json=body)
    assert said.status_code == 201, said.text
    return int(said.json()["id"])


def test_datasets_link_to_what_was_collected(client: TestClient) -> None:
    assert "From your feedback" not in client.get("/datasets").text
    say(client)
    say(client, 1)
    say(client, rejected=None, label=True)

    link = next(
        one
        for one in parse_page(client.get("/datasets").text).all("a")
        if one.attributes.get("href") == "/feedback"
    )

    assert " ".join(link.text.split()) == "From your feedback: 2 preferences, 1 rating"


def test_page_without_feedback_says_where_it_comes_from(client: TestClient) -> None:
    assert "No feedback yet" in client.get("/feedback").text


def test_preferences_are_shown_with_their_models_and_cautions(client: TestClient) -> None:
    say(client, model="run 4", other_model="starter", temperature=0.5, seed=7)

    text = parse_page(client.get("/feedback").text).one("main").text

    assert "Fewer than 50 preferences teach little" in text
    assert "In 100 % of the pairs, the better answer is the longer one. A model may learn" in text
    assert "run 4 over starter" in text
    assert "temperature 0.5" in text
    assert "seed 7" in text


def test_balanced_pairs_are_no_caution(client: TestClient) -> None:
    for number in range(4):
        say(client, number, **({"rejected": "Certainly not, no."} if number % 2 else {}))

    text = client.get("/feedback?kind=preference").text

    assert "In 50 % of the pairs" in text
    assert "length only" not in text


def test_one_press_makes_a_dataset_and_the_next_trains_on_it(client: TestClient) -> None:
    say(client)

    made = client.post("/feedback/datasets", data={"kind": "preference"})
    again = client.post("/feedback/datasets", data={"kind": "preference"})

    assert "Made version 1 of preferences from feedback." in made.text
    assert "Nothing has changed since version 1" in again.text
    link = next(one for one in parse_page(made.text).all("a") if one.text == "Train on this")
    form = parse_page(client.get(link.attributes["href"]).text)
    assert form.one("input", name="method").attributes["value"] == "dpo"


def test_rows_are_deleted_and_paged(client: TestClient) -> None:
    numbers = [say(client, number) for number in range(21)]
    first = parse_page(client.get("/feedback").text)
    older = next(one for one in first.all("a") if one.attributes.get("rel") == "next")

    assert len(first.all("li", class_="card")) == 20
    rest = parse_page(client.get(older.attributes["href"]).text)
    assert len(rest.all("li", class_="card")) == 1

    gone = client.post(f"/feedback/{numbers[0]}/delete")

    assert gone.status_code == 200
    assert client.get(f"{API}/{numbers[0]}").status_code == 404


def test_wrong_requests_are_explained(client: TestClient) -> None:
    assert client.get("/feedback?kind=opinions").status_code == 422
    assert client.post("/feedback/datasets", data={"kind": "judged"}).status_code == 409
    assert client.post("/feedback/99/delete").status_code == 404
