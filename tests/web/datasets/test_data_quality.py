"""What is suspicious in a data set: on its page, over REST, and in the way of a start."""

import io
import json
import zipfile
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.page_reader import field_error, form_fields, parse_page

API = "/api/v1/datasets"
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
GOOD = [(f"What is {i}?", f"It is {i}.") for i in range(20)]
BELL = ("Ring\x07 it", "Yes.")


def bring(client: TestClient, pairs: list[tuple[str, str]]) -> int:
    """Bring conversations. Return the data set's id."""
    rows = ({"prompt": question, "completion": answer} for question, answer in pairs)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    answer = client.post(API, files={"file": ("pets.jsonl", content)})
    number: int = answer.raise_for_status().json()["id"]
    return number


def error_of(answer: Any) -> tuple[int, str, str | None]:  # noqa: ANN401 -- the client's response
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_findings_are_listed_with_count_and_rows(client: TestClient) -> None:
    number = bring(client, [*GOOD, BELL, *GOOD[:2]])
    page = parse_page(client.get(f"/datasets/{number}").text)

    told = [one.text for one in page.all("li", class_="finding")]
    assert [one.split(" Show rows")[0] for one in told] == [
        "Duplicate rows. 2 rows (rows 22, 23)",
        "Rows contain control characters or invisible characters. 1 row (row 21)",
    ]


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "Some rows seem to be in French; the others are in English. 1 row (row 25)"),
        ("zh-Hans", "有些行看起来是法语"),
    ],
)
def test_rows_in_another_language_are_found_and_excluded(
    client: TestClient, language: str, said: str
) -> None:
    english = "My neighbour grows tomatoes on her balcony and gives them away in the month of"
    french = "Ma voisine fait pousser des tomates sur son balcon et les offre à tout le monde."
    rows = [(f"{english} {i}?", f"{english} {i + 1}.") for i in range(24)]
    number = bring(client, [*rows, (french, french)])
    page = parse_page(client.get(f"/datasets/{number}", headers={"Accept-Language": language}).text)
    answer = client.post(f"{API}/{number}/exclude", json={"finding": "other_language"})

    (told,) = [one.text for one in page.all("li", class_="finding")]
    assert told.startswith(said)
    assert answer.json()["version"]["train_rows"] == 24


def test_message_is_shown_when_no_issues_are_found(client: TestClient) -> None:
    number = bring(client, GOOD)

    assert "No issues found in the rows." in client.get(f"/datasets/{number}").text


def test_rows_of_finding_are_shown_with_highlight(client: TestClient) -> None:
    number = bring(client, [*GOOD, BELL])
    page = parse_page(client.get(f"/datasets/{number}").text)
    link = page.one(
        "a",
        **{"aria-label": "Show rows: Rows contain control characters or invisible characters"},
    )
    shown = parse_page(
        client.get(f"/datasets/{number}{link.attributes['href'].split(str(number), 1)[1]}").text
    )

    assert [one.text for one in shown.all("h3") if one.text.startswith("Row ")] == ["Row 21"]
    assert shown.one("mark", class_="found").text == "U+0007"
    assert "It contains U+0007." in shown.text


def test_duplicate_row_links_to_original(client: TestClient) -> None:
    number = bring(client, [*GOOD, GOOD[4]])
    page = parse_page(client.get(f"/datasets/{number}?finding=duplicates").text)

    (link,) = [one for one in page.all("a") if one.text == "Show row 5"]
    assert link.attributes["href"] == "?version=1&split=train&rows=5#rows"


def test_excluding_finding_can_be_undone(client: TestClient) -> None:
    number = bring(client, [*GOOD, BELL])
    page = client.post(f"/datasets/{number}/versions/1/leave-out?code=control_characters")

    shown = parse_page(page.text)
    assert (page.status_code, page.url.query) == (200, b"told=out&before=1")
    assert "Those rows are excluded. New runs use version 2; version 1 is unchanged." in shown.text
    (button,) = [one for one in shown.all("button") if one.text == "Undo: use version 1"]
    (form,) = [one for one in shown.all("form", method="post") if button in one.all("button")]
    client.post(form.attributes["action"])
    assert client.get(f"{API}/{number}").json()["version"] == 1


def test_excluding_resolved_finding_is_rejected(client: TestClient) -> None:
    number = bring(client, [*GOOD, BELL])
    for status in (200, 409):
        where = f"/datasets/{number}/versions/1/leave-out?code=control_characters"
        assert client.post(where).status_code == status


def test_api_version_includes_findings(client: TestClient) -> None:
    number = bring(client, [*GOOD, BELL])

    assert client.get(f"{API}/{number}/versions/1").json()["findings"] == [
        {
            "kind": "finding",
            "code": "control_characters",
            "message": "Rows contain control characters or invisible characters",
            "count": 1,
            "rows": [21],
            "places": [],
            "blocking": False,
            "split": "train",
        }
    ]


def test_rows_of_finding_are_paginated_by_api(client: TestClient) -> None:
    number = bring(client, [*GOOD, *GOOD[:3]])
    asked: dict[str, str | int] = {"finding": "duplicates", "limit": 2}
    page = client.get(f"{API}/{number}/rows", params=asked).json()

    told = [(one["number"], one["twin"], one["why"]) for one in page["data"]]
    assert told == [(21, 1, "Identical to row 1."), (22, 2, "Identical to row 2.")]
    rest = client.get(f"{API}/{number}/rows", params=asked | {"after": page["next_after"]}).json()
    assert ([one["number"] for one in rest["data"]], rest["has_more"]) == ([23], False)
    asked = {"finding": "misread"}
    assert error_of(client.get(f"{API}/{number}/rows", params=asked)) == (404, "not_found", None)


@pytest.mark.parametrize("wanted", [{"finding": "control_characters"}, {"rows": [21]}])
def test_rows_can_be_excluded_by_api(client: TestClient, wanted: dict[str, Any]) -> None:
    number = bring(client, [*GOOD, BELL])
    answer = client.post(f"{API}/{number}/exclude", json=wanted)

    made = answer.json()["version"]
    assert (answer.status_code, made["number"], made["train_rows"]) == (201, 2, 20)
    assert (made["findings"], made["mapping"]["exclude"]) == ([], [21])


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({}, (422, "invalid", None)),
        ({"rows": [1], "finding": "misread"}, (422, "invalid", None)),
        ({"finding": "misread"}, (404, "not_found", None)),
        ({"rows": list(range(1, 30))}, (422, "invalid", "exclude")),
    ],
)
def test_invalid_exclusion_is_rejected(
    client: TestClient, wanted: dict[str, Any], told: tuple[int, str, str | None]
) -> None:
    number = bring(client, GOOD)

    assert error_of(client.post(f"{API}/{number}/exclude", json=wanted)) == told


def test_single_row_dataset_blocks_plan_run_and_form(client: TestClient) -> None:
    number = bring(client, GOOD[:1])
    recipe = {"base_model": "starter", "dataset": "pets"}
    message = "Only one row can be trained on; training and validation need one each."

    planned = client.post("/api/v1/plan", json={"recipe": recipe}).json()
    refused = client.post("/api/v1/runs", json={"name": "no", "recipe": recipe})
    form = dict(form_fields(parse_page(client.get("/new?preset=full").text).one(id="form")))
    form |= {"dataset": "pets", "name": "no"}
    advised = parse_page(client.post("/new/advice", data=form, headers=HTMX).text)
    started = parse_page(client.post("/new", data=form).text)

    (told,) = planned["refusals"]
    assert (told["message"], told["link"]) == (message, f"/datasets/{number}#problems")
    assert refused.json()["error"]["message"] == message
    assert error_of(refused) == (422, "invalid", "dataset")
    assert message in advised.text
    assert [one.attributes["href"] for one in advised.all("a") if one.text == "View dataset"] == [
        f"/datasets/{number}#problems"
    ]
    assert field_error(started, "dataset").startswith(message)


def test_non_blocking_finding_becomes_plan_warning(client: TestClient) -> None:
    bring(client, [*GOOD, BELL])
    recipe = {"base_model": "starter", "dataset": "pets"}
    planned = client.post("/api/v1/plan", json={"recipe": recipe}).json()

    assert planned["refusals"] == []
    assert "1 issue in this dataset." in planned["warnings"]


def test_labels_of_spreadsheets_from_elsewhere_are_checked_across_parts(
    client: TestClient,
) -> None:
    """Encodings, separators and the casing of labels differ, as in files that people bring."""
    train = "\r\n".join(
        [
            "TEXT;Label",
            *(f"Un écran {i} a été livré cassé;{('Défaut', 'Retard')[i % 2]}" for i in range(40)),
        ]
    )
    held = "\n".join(
        ["TEXT,Label", *(f"Boîte {i} ouverte,{('Défaut', 'retard')[i % 2]}" for i in range(4))]
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.csv", train.encode("cp1252"))
        archive.writestr("test.csv", held.encode("utf-16"))

    answer = client.post(API, files={"file": ("labels.zip", packed.getvalue())})
    assert answer.status_code == 201, answer.text
    made = answer.json()

    found = {one["code"]: one for one in made["findings"]}
    assert made["shape"] == "classification"
    assert "“Retard”" in found["unmeasured_classes"]["message"]
    assert "“retard”" in found["unseen_classes"]["message"]
    assert found["unseen_classes"]["rows"] == [2, 4]
