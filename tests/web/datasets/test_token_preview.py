"""See what will be trained: the panel of the form, the page of a data set, and the API."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.processes import unix_sockets
from studio.services.models import models
from studio.settings import Settings
from tests.support import factories, tokenizer_services
from tests.support.page_reader import Node, field_error, form_fields, parse_page

AT_ONCE = 8
"""How many may wait for the desk: `studio.services.models.service_clients` lets no more in."""
PREVIEW = "/api/v1/datasets/1/preview"
"""Answered by a real desk, on the data set that every test has."""


@pytest.fixture(scope="module")
def desk_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("desk")
    tokenizer_services.write_model(home / "spoken")
    tokenizer_services.write_model(home / "base", template="")
    with tokenizer_services.run_tokenizer_service(Settings(home=home)):
        yield home


@pytest.fixture
def model(engine: Engine, settings: Settings, desk_home: Path) -> Path:
    """Add a model with a chat template, and one without, and let the test's home have a desk."""
    (settings.home / "desk.sock").symlink_to(desk_home / "desk.sock")
    with unit_of_work(engine) as db:
        for name in ("spoken", "base"):
            models.add(db, name, str(desk_home / name), kind="folder")
    return desk_home / "spoken"


def form(client: TestClient, **changes: str) -> dict[str, str]:
    found = dict(form_fields(parse_page(client.get("/new").text).one(id="form")))
    return found | {name.replace("__", "."): value for name, value in changes.items()}


def seen(client: TestClient, **changes: str) -> Node:
    return parse_page(client.post("/new/sight", data=form(client, **changes)).text)


def written(node: Node) -> str:
    return "".join(part if isinstance(part, str) else written(part) for part in node.parts)


def learnt(node: Node) -> list[str]:
    return [written(mark) for mark in node.one(role="region").all("mark")]


@pytest.mark.usefixtures("model")
def test_form_shows_row_as_tokens_of_chosen_model(client: TestClient) -> None:
    node = seen(client, base_model="spoken")

    assert learnt(node) == ["1.<|im_end|>"]
    assert "41 tokens · 3 trained on · 0 truncated" in node.text


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("row", "step", "shown"),
    [("1", "on", "2"), ("2", "back", "1"), ("40", "on", "40"), ("999", "", "40"), ("", "", "1")],
)
def test_preview_steps_through_rows(client: TestClient, row: str, step: str, shown: str) -> None:
    node = seen(client, base_model="spoken", look__row=row, look__step=step)

    assert node.one(id="look-row").attributes["value"] == shown


@pytest.mark.usefixtures("model")
def test_truncated_tokens_are_shown_after_cut(client: TestClient) -> None:
    node = seen(client, base_model="spoken", data__max_length="39")

    region = node.one(role="region")
    assert [written(one) for one in region.all("s")] == ["<|im_end|>", "\n"]
    assert [one.text for one in region.all(class_="cut-mark")] == ["truncated at 39"]


@pytest.mark.usefixtures("model")
def test_base_model_offers_chat_templates(client: TestClient) -> None:
    node = seen(client, base_model="base")

    offers = [one.attributes.get("data-repair") for one in node.all("button")]
    assert "This model has no chat template" in node.text
    assert [offer for offer in offers if offer] == [
        '{"data.chat_template": "chatml"}',
        '{"data.chat_template": "plain"}',
    ]


@pytest.mark.usefixtures("model")
def test_run_of_base_model_needs_chat_template(client: TestClient) -> None:
    refused = client.post("/new", data=form(client, base_model="base"))
    advice = client.post("/new/advice", data=form(client, base_model="base")).text
    chosen = client.post("/new", data=form(client, base_model="base", data__chat_template="chatml"))

    assert refused.status_code == 422
    assert "has no chat template" in field_error(parse_page(refused.text), "data.chat_template")
    assert "Use the ChatML template" in advice
    assert chosen.url.path == "/runs/1"


PAIRS = (
    '{"prompt": "Name a fruit.", "chosen": "A pear.", "rejected": "A bear, or so."}\n'
    '{"prompt": "Name a bird.", "chosen": "A swan.", "rejected": "A swan. Or a swamp."}\n'
)


@pytest.mark.usefixtures("model")
def test_pair_is_shown_in_two_columns(client: TestClient) -> None:
    client.post("/api/v1/datasets", files={"file": ("pairs.jsonl", PAIRS.encode())})

    page = parse_page(client.get("/datasets/2/sight?model=spoken").text)

    better, worse = (
        one
        for one in page.one(class_="answers").all("section")
        if "aria-labelledby" in one.attributes
    )
    assert [written(one) for one in better.all("b")] == ["p"]
    assert [written(one) for one in worse.all("b")] == ["b", ", or so"]
    assert "8 trained on" in better.text
    assert "15 trained on" in worse.text


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("method", "columns"), [("dpo", 1), ("kto", 1), ("sft", 0)])
def test_form_shows_of_pair_what_its_method_reads(
    client: TestClient, method: str, columns: int
) -> None:
    client.post("/api/v1/datasets", files={"file": ("pairs.jsonl", PAIRS.encode())})
    posted = parse_page(client.get(f"/new?method={method}").text).one(id="form")

    node = parse_page(
        client.post(
            "/new/sight",
            data=dict(form_fields(posted)) | {"base_model": "spoken", "dataset": "pairs"},
        ).text
    )

    assert len(node.all(class_="answers")) == columns


@pytest.mark.usefixtures("model")
def test_rated_answer_is_shown_with_its_rating(client: TestClient) -> None:
    rows = '{"prompt": "Name a fruit.", "completion": "A bear.", "label": false}\n'
    rows += '{"prompt": "Name a fruit.", "completion": "A pear.", "label": true}\n'
    client.post("/api/v1/datasets", files={"file": ("rated.jsonl", rows.encode())})

    bad, good = (
        parse_page(client.get(f"/datasets/2/sight?model=spoken&row={row}").text).one(id="sight")
        for row in (1, 2)
    )

    assert "rated bad" in bad.text
    assert learnt(bad) == ["A bear.<|im_end|>"]
    assert "rated good" in good.text


@pytest.mark.usefixtures("model")
def test_text_dataset_needs_no_template(client: TestClient) -> None:
    rows = '{"text": "So it goes, and so it went."}\n' * 3
    client.post("/api/v1/datasets", files={"file": ("tale.jsonl", rows.encode())})

    node = seen(client, base_model="base", dataset="tale")
    started = client.post("/new", data=form(client, base_model="base", dataset="tale"))

    assert learnt(node) == ["o it goes, and so it went.<|im_end|>"]
    assert started.url.path == "/runs/1"


def test_preview_shows_message_when_no_worker_is_running(client: TestClient) -> None:
    assert "No worker is running, so tokens cannot be shown." in seen(client).text


def test_waiting_previews_do_not_block_other_pages(
    client: TestClient, settings: Settings, model: Path
) -> None:
    """Whoever listens at the socket says nothing yet, as a worker whose desk has not come."""
    place, data = settings.home / "desk.sock", form(client, base_model=model.name)
    place.unlink()
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(AT_ONCE) as others:
        with unix_sockets.socket_address(place) as where:
            listener.bind(where)
        listener.listen()
        listener.settimeout(60)  # of a test that fails
        asking = [others.submit(client.post, "/new/sight", data=data) for _ in range(AT_ONCE)]
        lines = [listener.accept()[0] for _ in asking]
        answered = [client.get(page).status_code for page in ("/datasets", "/api/v1/runs")]
        one_more = client.post("/new/sight", data=data).text
        waiting = [one for one in asking if not one.done()]
        for line in lines:
            line.close()

    assert (answered, len(waiting)) == ([200, 200], AT_ONCE)
    assert "Too many token previews at once." in one_more
    assert ["could not be computed" in one.result().text for one in asking] == [True] * AT_ONCE


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data__max_length": "many"}, "The max length is not valid."),
        ({"base_model": "nobody"}, "There is no model named nobody."),
        ({"dataset": "nothing"}, "There is no dataset named nothing."),
        ({"data": "no group"}, "41 tokens"),
    ],
)
def test_incomplete_form_shows_message_instead_of_error(
    client: TestClient, change: dict[str, str], said: str
) -> None:
    values = {"base_model": "spoken", "dataset": "starter", "data.max_length": "1024"}
    values |= {name.replace("__", "."): value for name, value in change.items()}

    answer = client.post("/new/sight", data=values)

    assert (answer.status_code, said in answer.text) == (200, True)


@pytest.mark.usefixtures("model")
def test_dataset_links_to_token_preview_of_its_rows(client: TestClient) -> None:
    link = [
        one.attributes["href"]
        for one in parse_page(client.get("/datasets/1").text).all("a")
        if one.attributes.get("href", "").endswith("/sight")
    ]
    node = parse_page(client.get(f"{link[0]}?model=spoken&row=3").text)

    assert learnt(node) == ["3.<|im_end|>"]
    assert node.one(id="look-model").attributes["value"] == "spoken"


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("page", ["sight", "stats"])
def test_default_model_is_chosen_and_explained(
    client: TestClient, engine: Engine, desk_home: Path, page: str
) -> None:
    def asked() -> tuple[str, str]:
        node = parse_page(client.get(f"/datasets/1/{page}").text)
        return node.one(id="look-model").attributes["value"], node.one(id="look-why").text

    with unit_of_work(engine) as db:
        models.add(db, "run-7", str(desk_home / "spoken"), kind="run")
    newest = asked()
    with unit_of_work(engine) as db:
        factories.make_run(db, base_model="spoken")

    assert newest == ("base", "The newest base model here: no run has used this dataset.")
    assert asked() == ("spoken", "The base model of run #1, the newest on this dataset.")


@pytest.mark.usefixtures("model")
def test_preview_shows_rows_of_older_version(client: TestClient) -> None:
    rows = "".join(f'{{"prompt": "{i}?", "completion": "{i}."}}\n' for i in range(7))
    client.post("/api/v1/datasets", files={"file": ("sums.jsonl", rows.encode())})
    client.post("/api/v1/datasets/2/exclude", json={"rows": [1]}).raise_for_status()
    (link,) = [
        one.attributes["href"]
        for one in parse_page(client.get("/datasets/2?version=1").text).all("a")
        if "/sight" in one.attributes.get("href", "")
    ]
    asked: dict[str, str | int] = {"model": "spoken", "row": 1}
    old: dict[str, str | int] = {"version": 1}
    first, last = (
        parse_page(client.get("/datasets/2/sight", params=asked | which).text)
        for which in (old, {})
    )
    told = client.get("/api/v1/datasets/2/preview", params=asked | old).json()

    assert link == "/datasets/2/sight?version=1"
    assert (learnt(first), learnt(last)) == (["0.<|im_end|>"], ["1.<|im_end|>"])
    assert ("version", "1") in form_fields(first.one(id="look"))
    assert "New runs use version 2." in first.text
    assert "".join(one["text"] for one in told["tokens"] if one["learnt"]) == "0.<|im_end|>"


@pytest.mark.usefixtures("model")
def test_api_returns_every_token(client: TestClient) -> None:
    found = client.get(PREVIEW, params={"model": "spoken", "row": 2}).json()

    assert "".join(one["text"] for one in found["tokens"] if one["learnt"]) == "2.<|im_end|>"
    assert (found["total"], found["learnt"], found["cut_at"]) == (41, 3, None)


@pytest.mark.usefixtures("model")
def test_api_previews_unsaved_row(client: TestClient) -> None:
    row: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    found = client.post(PREVIEW, json={"model": "spoken", "row": row}).json()

    assert found["warnings"] == [
        "Nothing in this row is trained on: it has no answer to train on. Training leaves it out."
    ]


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"model": "spoken", "row": 41}, 404, "not_found"),
        ({"model": "base"}, 422, "no_chat_template"),
        ({"model": "spoken", "split": "validation"}, 404, "not_found"),
        ({"model": "spoken", "version": 9}, 404, "not_found"),
        ({"model": "nobody"}, 422, "invalid"),
    ],
)
def test_invalid_preview_request_gets_clear_error(
    client: TestClient, query: dict[str, Any], status: int, code: str
) -> None:
    answer = client.get(PREVIEW, params=query)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_plan_rejects_base_model_without_template(client: TestClient, model: Path) -> None:
    assert model.is_dir()
    recipe = factories.make_recipe(base_model="base").model_dump(mode="json")

    (refused,) = client.post("/api/v1/plan", json={"recipe": recipe}).json()["refusals"]

    assert (refused["param"], refused["repair"]) == (
        "data.chat_template",
        {"data": {"chat_template": "chatml"}},
    )


@pytest.mark.usefixtures("model")
def test_packed_row_is_shown_with_neighbouring_rows(client: TestClient) -> None:
    node = seen(
        client, base_model="spoken", data__packing="true", data__max_length="130", look__row="5"
    )

    (told,) = node.all(class_="packed")
    marks = [one.text for one in node.one(role="region").all(class_="pack-mark")]
    assert told.text == "Packed with rows 4, 6: 123 of 130 tokens."
    assert marks == ["end of row 4", "this row, 5", "row 6"]
    assert learnt(node) == ["5.<|im_end|>"]


@pytest.mark.usefixtures("model")
def test_packed_row_can_be_alone(client: TestClient) -> None:
    node = seen(client, base_model="spoken", data__packing="true", data__max_length="50")

    assert [one.text for one in node.all(class_="packed")] == [
        "Not packed with other rows: 41 of 50 tokens."
    ]


@pytest.mark.usefixtures("model")
def test_validation_row_is_not_packed(client: TestClient) -> None:
    asked: dict[str, Any] = {"model": "spoken", "packing": True, "validation_share": 0.5, "seed": 1}
    told = [client.get(PREVIEW, params=asked | {"row": row}).json() for row in range(1, 41)]

    held = [one for one in told if one["pack"] is None]
    assert len(held) == 20
    assert held[0]["sentences"] == [
        "This row is held out for validation and does not share an example."
    ]
