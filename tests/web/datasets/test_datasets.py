"""Data sets on screen and over REST: brought, looked into, renamed, deleted."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.intake.files.formats import ACCEPTED_EXTENSIONS
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.factories import make_run
from tests.support.page_reader import Node, field_error, field_value, form_fields, parse_page

pytestmark = pytest.mark.smoke

ROW = b'{"prompt": "Who?", "completion": "Me."}\n'
HOSTILE = (
    b'{"prompt": "<script>alert(1)</script>", "completion": "{{ 7*7 }} <img src=x onerror=y>"}\n'
)
API = "/api/v1/datasets"


def files(content: bytes = ROW, filename: str = "pets.jsonl") -> dict[str, tuple[str, bytes]]:
    return {"file": (filename, content)}


def bring(client: TestClient, content: bytes = ROW, filename: str = "pets.jsonl") -> Any:  # noqa: ANN401 -- the client's response
    """Bring a file and use what was seen in it, as one does who presses the one button."""
    screen = client.post("/datasets", files=files(content, filename))
    sent = form_fields(parse_page(screen.text).one("form", id="form"))
    return client.post(screen.url.path, data=dict(sent))


def rows_in(page: Node) -> list[str]:
    """Return the headings of the rows that a page shows."""
    return [title for one in page.all("h3") if (title := one.text).startswith("Row ")]


def error_of(answer: Any) -> tuple[int, str, str]:  # noqa: ANN401 -- the client's response
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_uploaded_file_is_shown_as_conversations(client: TestClient) -> None:
    page = bring(client, ROW + b'{"prompt": "Why?"}\n')

    shown = parse_page(page.text)
    assert page.url.path == "/datasets/2"
    assert shown.one("h1").text == "pets"
    assert [turn.text for turn in shown.all(class_="turn")] == ["user Who?", "assistant Me."]
    (problem,) = shown.one("tbody").all("tr")
    assert problem.text == "The answer is missing or empty. 1 line 2 Show rows"


def test_list_shows_shape_format_size_and_rows(client: TestClient) -> None:
    bring(client, ROW + b"{}\n" + ROW + ROW.replace(b"Who", b"How"))

    newest, starter = parse_page(client.get("/datasets").text).one("tbody").all("tr")
    shown = [cell.text for cell in newest.all("td")]
    assert shown[0] == "3"
    assert shown[2:6] == [
        "Prompt and answer: prompt and completion",
        "jsonl",
        "123 B",
        "1 row",
    ]
    assert starter.one("a").attributes["href"] == "/datasets/1"


def test_rejected_file_shows_error_at_field_and_keeps_form(client: TestClient) -> None:
    answer = client.post(
        "/datasets", files=files(b"<html>", "pets.csv"), data={"name": 'my <b>"pets"'}
    )

    page = parse_page(answer.text)
    assert answer.status_code == 422
    assert field_error(page, "file").startswith(
        "The file has the extension .csv, but its content is an HTML page."
    )
    assert field_value(page.one("form", id="form"), "name") == 'my <b>"pets"'


def test_taken_name_shows_error_at_name_field(client: TestClient) -> None:
    answer = client.post("/datasets", files=files(), data={"name": "starter"})

    page = parse_page(answer.text)
    assert field_error(page, "name").startswith("A dataset named starter already exists.")
    assert field_error(page, "file") == ""


def test_upload_without_file_is_rejected(client: TestClient) -> None:
    answer = client.post(API, files={"file": ("", b"")})

    assert error_of(answer) == (422, "invalid", "file")


def test_html_in_rows_and_names_is_escaped(client: TestClient) -> None:
    page = bring(client, HOSTILE, '"><script>x.jsonl')

    turns = [turn.text for turn in parse_page(page.text).all(class_="turn")]
    assert turns == [
        "user <script>alert(1)</script>",
        "assistant {{ 7*7 }} <img src=x onerror=y>",
    ]
    assert "<script>x" not in page.text
    assert "onerror=y>" not in page.text


def test_rows_are_shown_ten_per_page(client: TestClient) -> None:
    client.post(API, files=files(ROW * 20))

    first = parse_page(client.get("/datasets/2").text)
    following = first.one("a", rel="next").attributes["href"]
    second = parse_page(client.get(f"/datasets/2{following}").text)

    assert (rows_in(first)[-1], following) == ("Row 10", "?version=1&split=train&after=10#rows")
    assert (rows_in(second), second.all("a", rel="next")) == (
        [f"Row {number}" for number in range(11, 21)],
        [],
    )


def test_long_turn_is_truncated_on_page(client: TestClient) -> None:
    long = ROW.replace(b"Me.", b"m" * 5000)

    page = parse_page(bring(client, long).text)

    assert page.all(class_="turn")[1].text.endswith("mmm … and 1,000 more characters")


def test_dataset_can_be_renamed(client: TestClient) -> None:
    page = client.post("/datasets/1/name", data={"name": "other"})

    assert parse_page(page.text).one("h1").text == "other"


def test_rejected_rename_keeps_input_and_shows_reason(client: TestClient) -> None:
    client.post(API, files=files())

    answer = client.post("/datasets/2/name", data={"name": "starter"})

    page = parse_page(answer.text)
    assert (answer.status_code, field_value(page.one("form", id="form"), "name")) == (
        422,
        "starter",
    )
    assert field_error(page, "name").startswith("A dataset named starter already exists.")


def test_dataset_can_be_deleted(client: TestClient) -> None:
    page = client.post("/datasets/1/delete")

    assert (page.url.path, parse_page(page.text).one(class_="empty").one("h2").text) == (
        "/datasets",
        "No datasets yet",
    )


def test_dataset_in_use_cannot_be_deleted(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    page, answer = client.post("/datasets/1/delete"), client.delete(f"{API}/1")

    assert (page.status_code, error_of(answer)[:2]) == (409, (409, "conflict"))
    assert "is used by run 1, first try, which is queued." in page.text


@pytest.mark.parametrize("place", ["9", "9/rows", "9/problems"])
def test_missing_dataset_returns_clear_error(client: TestClient, place: str) -> None:
    answer = client.get(f"{API}/{place}")

    assert answer.json()["error"] == {
        "code": "not_found",
        "message": "Dataset 9 does not exist.",
        "hint": "It may have been deleted.",
        "param": None,
    }


@pytest.mark.parametrize(
    "place", ["0", "x", "99999999999999999999", "1/rows?after=-1", "1/rows?split=other"]
)
def test_invalid_ids_and_parameters_are_rejected(client: TestClient, place: str) -> None:
    assert client.get(f"{API}/{place}").status_code == 422


def test_api_upload_returns_full_dataset_with_problems(client: TestClient) -> None:
    answer = client.post(API, files=files(ROW + b'{"prompt": 1}\n'), data={"name": "mine"})

    made = answer.json()
    assert (answer.status_code, made["id"], made["name"], made["train_rows"]) == (201, 2, "mine", 1)
    noticed = client.get(f"{API}/2/problems").json()["data"]
    assert made["problems"] + made["findings"] == noticed
    assert [one["kind"] for one in noticed] == ["left_out", "finding"]
    assert client.get(f"{API}/2").json() == made
    assert client.get(API).json()["data"][0] == made


def test_unused_columns_are_noted_not_excluded(client: TestClient) -> None:
    bring(client, b'{"prompt": "Who?", "completion": "Me.", "agent": 7}\n')

    section = parse_page(client.get("/datasets/2").text).one(
        "section", **{"aria-labelledby": "problems"}
    )
    (note,) = client.get(f"{API}/2/problems").json()["data"][:1]

    assert "Notes on the file These columns are not used: agent." in section.text
    assert "Rows left out" not in section.text
    assert (note["kind"], note["code"]) == ("note", "unused_columns")


def test_page_shows_ten_rows_and_folds_long_ones(client: TestClient) -> None:
    long = "So it goes. " * 100
    rows = [{"prompt": f"Who is {i}?", "completion": long if i == 1 else "Me."} for i in range(12)]
    bring(client, "".join(json.dumps(row) + "\n" for row in rows).encode())
    first = parse_page(client.get("/datasets/2").text)
    boxes = [one.attributes["aria-controls"] for one in first.all("input", type="checkbox")]

    assert rows_in(first) == [f"Row {number}" for number in range(1, 11)]
    assert boxes == ["row-2"]
    assert rows_in(parse_page(client.get("/datasets/2?after=10").text)) == ["Row 11", "Row 12"]


def test_api_rows_are_paginated(client: TestClient) -> None:
    page = client.get(f"{API}/1/rows", params={"after": 38, "limit": 1}).json()

    assert page == {
        "data": [
            {
                "number": 39,
                "messages": [
                    {"role": "user", "content": "What is 38 and one?"},
                    {"role": "assistant", "content": "39."},
                ],
            }
        ],
        "has_more": True,
        "next_after": 39,
    }


def test_api_list_is_paginated(client: TestClient) -> None:
    client.post(API, files=files())

    first = client.get(API, params={"limit": 1}).json()
    second = client.get(API, params={"limit": 1, "after": first["next_after"]}).json()

    assert ([one["id"] for one in first["data"]], first["has_more"]) == ([2], True)
    assert ([one["id"] for one in second["data"]], second["has_more"]) == ([1], False)


def test_dataset_can_be_renamed_and_deleted_by_api(client: TestClient) -> None:
    renamed = client.patch(f"{API}/1", json={"name": "other"})
    deleted = client.delete(f"{API}/1")

    assert (renamed.json()["name"], deleted.status_code) == ("other", 204)
    assert client.get(API).json() == {"data": [], "has_more": False, "next_after": None}


def test_unknown_form_field_is_rejected(client: TestClient) -> None:
    answer = client.post(API, files=files(), data={"nmae": "typo"})

    assert error_of(answer) == (422, "invalid", "nmae")


def test_upload_over_size_limit_is_rejected(engine: Engine, settings: Settings) -> None:
    small = settings.model_copy(update={"upload_limit_bytes": 1000})
    client = TestClient(create_app(engine, small))

    assert client.post(API, files=files(ROW * 100)).status_code == 413


@pytest.mark.parametrize("content", [ROW, b"", b"<html>"])
def test_upload_leaves_no_temporary_files(
    client: TestClient, settings: Settings, content: bytes
) -> None:
    client.post(API, files=files(content))

    assert [path.name for path in settings.datasets.glob(".*")] == []


def test_original_file_is_kept_unchanged(client: TestClient, settings: Settings) -> None:
    client.post(API, files=files(ROW, "pets.JSONL"))

    original = Path(settings.datasets / "2" / "original.jsonl")
    assert original.read_bytes() == ROW


def test_non_utf8_csv_shows_encoding_note(client: TestClient) -> None:
    content = "prompt;completion\nQué?;Voilà\n".encode("cp1252")

    number = client.post(API, files={"file": ("Fragen.csv", content)}).json()["id"]
    shown = client.get(f"/datasets/{number}")

    assert "Voilà" in shown.text
    assert "Not UTF-8; check that the characters look right" in shown.text


def test_file_inputs_accept_every_supported_extension(client: TestClient) -> None:
    shown = client.get("/datasets")

    assert shown.text.count(f'accept="{ACCEPTED_EXTENSIONS}"') == 2


def test_compressed_file_names_dataset_without_extensions(client: TestClient) -> None:
    packed = gzip.compress(b'{"prompt": "a", "completion": "b"}\n')

    made = client.post("/api/v1/datasets", files={"file": ("rows.jsonl.gz", packed)}).json()

    assert (made["name"], made["format"], made["train_rows"]) == ("rows", "jsonl", 1)
