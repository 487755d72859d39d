"""An Excel workbook is read on the pages and by programs; another sheet is one choice away."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.excel_files import excel_file
from tests.support.page_reader import form_fields, parse_page

API = "/api/v1/datasets"
BOOK = excel_file(
    {
        "Tickets": [("prompt", "completion"), ("Where is it?", "On its way."), ("Why?", "Rain.")],
        "Letters": [("question", "answer"), ("Dear all", "Dear you")],
    }
)


def send(client: TestClient, content: bytes = BOOK, **sent: str) -> Any:  # noqa: ANN401 -- the client's response
    return client.post(API, files={"file": ("tickets.xlsx", content)}, data=sent)


def test_workbook_is_imported_in_one_request(client: TestClient) -> None:
    made = send(client)

    assert made.status_code == 201
    rows = client.get(f"{API}/{made.json()['id']}/rows").json()["data"]
    assert [row["messages"][1]["content"] for row in rows] == ["On its way.", "Rain."]


@pytest.mark.parametrize("draft", ["", "true"])
def test_api_upload_can_choose_sheet(client: TestClient, draft: str) -> None:
    made = send(client, sheet="Letters", draft=draft).json()

    seen = client.get(f"{API}/{made['id']}/detection").json()

    assert seen["sheets"] == ["Tickets", "Letters"]
    assert seen["mapping"]["file"]["sheet"] == "Letters"
    assert seen["mapping"]["roles"] == {"prompt": ["question"], "completion": ["answer"]}


def test_missing_sheet_is_rejected(client: TestClient) -> None:
    answer = send(client, sheet="Costs")

    told = answer.json()["error"]
    assert (answer.status_code, told["param"]) == (422, "sheet")
    assert told["message"] == "Sheet not found: Costs. Available sheets: Tickets, Letters."


def test_mapping_page_offers_other_sheets(client: TestClient) -> None:
    number = send(client, draft="true").json()["id"]
    address = f"/datasets/{number}/mapping"

    page = parse_page(client.get(address).text)
    other = parse_page(client.get(address, params={"sheet": "Letters"}).text)
    form = dict(form_fields(other.one("form", id="form")))
    answer = client.post(address, data=form, follow_redirects=False)

    sheets = page.one("select", id="sheet")
    assert [option.text for option in sheets.all("option")] == ["Tickets", "Letters"]
    assert "Dear all" in other.one("div", class_="scroller").text
    assert (form["file.sheet"], answer.status_code) == ("Letters", 303)
    (row,) = client.get(f"{API}/{number}/rows").json()["data"]
    assert row["messages"][1]["content"] == "Dear you"
