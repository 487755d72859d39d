"""The mapping screen and its REST twin: what was seen, what becomes of it, and what is kept."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from tests.support.factories import make_run
from tests.support.page_reader import Node, field_error, form_fields, parse_page

API = "/api/v1/datasets"
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
REVIEWS = "text,label\n" + "".join(
    f"A film number {i},{'good' if i % 3 else 'bad'}\n" for i in range(12)
)


def draft(client: TestClient, content: str, filename: str = "pets.csv") -> int:
    sent = {"file": (filename, content.encode())}
    answer = client.post(API, files=sent, data={"draft": "true"})
    number: int = answer.raise_for_status().json()["id"]
    return number


def screen(client: TestClient, dataset_id: int, query: str = "") -> Node:
    return parse_page(client.get(f"/datasets/{dataset_id}/mapping{query}").text)


def form_of(page: Node) -> dict[str, Any]:
    return dict(form_fields(page.one("form", id="form")))


def preview(client: TestClient, dataset_id: int, form: dict[str, Any]) -> str:
    answer = client.post(f"/datasets/{dataset_id}/mapping/preview", data=form, headers=HTMX)
    return parse_page(f"<div>{answer.text}</div>").text


def test_upload_opens_mapping_page_with_detected_shape(client: TestClient) -> None:
    page = client.post("/datasets", files={"file": ("films.csv", REVIEWS.encode())})

    shown = parse_page(page.text)
    assert page.url.path == "/datasets/2/mapping"
    assert shown.one("h1").text == "Map columns: films"
    assert shown.one("section", **{"aria-labelledby": "seen"}).one("strong").text == (
        "Text and label: text and label"
    )
    assert "Of all 12 rows, 12 are usable." in shown.one("section", id="preview").text


def test_detected_mapping_can_be_saved_unchanged(client: TestClient) -> None:
    number = draft(client, REVIEWS)

    page = client.post(f"/datasets/{number}/mapping", data=form_of(screen(client, number)))

    assert page.url.path == f"/datasets/{number}"
    made = client.get(f"{API}/{number}").json()
    assert (made["status"], made["version"], made["train_rows"], made["shape"]) == (
        "ready",
        1,
        12,
        "classification",
    )


def test_draft_opens_mapping_page(client: TestClient) -> None:
    number = draft(client, REVIEWS)

    assert client.get(f"/datasets/{number}").url.path == f"/datasets/{number}/mapping"


def test_label_values_can_be_renamed(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    form = form_of(screen(client, number))
    shown = next(name for name, value in form.items() if value == "bad" and "shown" in name)

    told = preview(client, number, form | {shown: "worth nothing"})

    assert "assistant worth nothing" in told


def test_filter_can_be_added_applied_and_removed(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    place = f"/datasets/{number}/mapping/form"
    added = parse_page(client.post(place, data=form_of(screen(client, number)) | {"add": "1"}).text)
    form = form_of(added) | {
        "keep.0.column": "label",
        "keep.0.op": "is",
        "keep.0.value": "bad",
    }
    told = preview(client, number, form)
    removed = parse_page(client.post(place, data=form | {"remove": "0"}).text)

    assert "Of all 12 rows, 4 are usable, 8 left out" in told
    assert "8 \N{MULTIPLICATION SIGN} Excluded by a filter." in told
    assert "keep.0.column" not in form_of(removed)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"sample": "5"}, (5, 0)),
        ({"deduplicate": "exact"}, (11, 0)),
        ({"deduplicate": "question"}, (10, 0)),
        ({"split.kind": "share", "split.share": "0.25"}, (11, 1)),
        ({"system": "Judge.", "joiner": json.dumps(", ")}, (12, 0)),
    ],
)
def test_mapping_form_choices_are_applied_to_rows(
    client: TestClient, changes: dict[str, str], parts: tuple[int, int]
) -> None:
    last = ["A film,9,good", "A film,9,good", "A film,9,bad"]
    rows = [f"A film,{number},good" for number in range(9)] + last
    number = draft(client, "title,year,verdict\n" + "\n".join(rows))
    named = {"role.0": "prompt", "role.1": "prompt", "role.2": "completion"}
    form = form_of(screen(client, number)) | {"shape": "prompt_completion"} | named
    client.post(f"/datasets/{number}/mapping", data=form | changes)
    made = client.get(f"{API}/{number}").json()
    (first,) = client.get(f"{API}/{number}/rows", params={"limit": 1}).json()["data"]

    assert (made["train_rows"], made["validation_rows"]) == parts
    asked = [one["content"].rstrip("1234567890") for one in first["messages"][:-1]]
    assert asked == (["Judge.", "A film, "] if "system" in changes else ["A film\n\n"])


def test_changing_shape_keeps_column_roles(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    form = form_of(screen(client, number)) | {"shape": "prompt_completion"}

    changed = form_of(parse_page(client.post(f"/datasets/{number}/mapping/form", data=form).text))

    assert (changed["role.0"], changed["role.1"]) == ("prompt", "completion")


def test_alternative_shape_can_be_chosen_by_link(client: TestClient) -> None:
    number = draft(client, REVIEWS)

    page = screen(client, number, "?as=1")

    first = client.get(f"{API}/{number}/detection").json()["alternatives"][0]
    assert form_of(page)["shape"] == first["shape"]


def test_rejected_mapping_form_keeps_input(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    typed = {"sample": "many", "system": "Two\r\nlines", "role.1": ""}
    form = form_of(screen(client, number)) | typed

    answer = client.post(f"/datasets/{number}/mapping", data=form)

    page = parse_page(answer.text)
    again = form_of(page)
    assert (answer.status_code, again["sample"], again["role.1"]) == (422, "many", "")
    assert again["system"] == "Two lines"
    assert field_error(page, "sample").startswith("Must be a whole number")
    assert client.get(f"{API}/{number}").json()["status"] == "draft"


def test_unmapped_role_is_reported(client: TestClient) -> None:
    number = draft(client, REVIEWS)

    told = preview(client, number, form_of(screen(client, number)) | {"role.1": ""})

    assert "No column selected for: label." in told


def test_unrecognised_columns_can_be_mapped(client: TestClient) -> None:
    number = draft(client, "a,b\n1,2\n3,4\n")
    form = form_of(screen(client, number))
    named = form | {"shape": "prompt_completion", "role.0": "prompt", "role.1": "completion"}

    page = client.post(f"/datasets/{number}/mapping", data=named)

    assert page.url.path == f"/datasets/{number}"
    assert client.get(f"{API}/{number}").json()["train_rows"] == 2


def test_cancelling_deletes_draft(client: TestClient) -> None:
    number = draft(client, REVIEWS)

    client.post(f"/datasets/{number}/delete")

    assert client.get(f"{API}/{number}").status_code == 404


def test_versions_are_listed_with_their_changes(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    form = form_of(screen(client, number))
    for changes in ({}, {"exclude": "2, 3", "system": "Judge."}, {}):
        last = client.post(f"/datasets/{number}/mapping", data=form | changes)

    page = parse_page(last.text)
    assert [one.text for one in page.one("ol", class_="versions").all("ul")] == [
        "System prompt: “Judge.”. Rows 2, 3 excluded.",
        "Text and label: text and label.",
    ]
    assert "This mapping gives the same rows as version 1." in page.text
    assert page.one("a", **{"aria-current": "true"}).text == "Version 1"


def test_row_can_be_excluded_with_one_click(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    client.post(f"/datasets/{number}/mapping", data=form_of(screen(client, number)))

    client.post(f"/datasets/{number}/exclude", data={"row": "3"})

    version = client.get(f"{API}/{number}/versions/2").json()
    assert (version["mapping"]["exclude"], version["train_rows"]) == ([3], 11)
    assert version["removed"] == {"excluded": 1}


def test_excluded_rows_are_shown_as_in_file(client: TestClient) -> None:
    number = draft(client, REVIEWS + ",good\n")
    page = client.post(f"/datasets/{number}/mapping", data=form_of(screen(client, number)))
    link = next(one for one in parse_page(page.text).all("a") if one.text == "Show rows")

    shown = parse_page(client.get(link.attributes["href"]).text).one("section", id="original")

    assert shown.one("article").text == "Line 14 text \N{EN DASH} label good"


def test_rows_can_be_searched(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    client.post(f"/datasets/{number}/mapping", data=form_of(screen(client, number)))

    page = parse_page(client.get(f"/datasets/{number}?q=NUMBER 11").text)
    found = client.get(f"{API}/{number}/rows", params={"q": "number 11"}).json()

    assert [one.text for one in page.all(class_="turn")] == [
        "user A film number 11",
        "assistant good",
    ]
    assert [(one["number"], one["source"]) for one in found["data"]] == [(12, 13)]


def test_training_rows_can_be_downloaded(client: TestClient) -> None:
    answer = client.get("/datasets/1/versions/1/train.jsonl")

    assert answer.headers["content-disposition"] == 'attachment; filename="starter-1-train.jsonl"'
    assert len(answer.text.splitlines()) == 40


def test_built_in_dataset_cannot_be_remapped(client: TestClient) -> None:
    answer = client.get("/datasets/1/mapping")

    assert answer.status_code == 422
    assert "is built in: it has no file to map again." in answer.text


def test_api_mapping_creates_or_reuses_version(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    mapping = client.get(f"{API}/{number}/detection").json()["mapping"]
    first = client.post(f"{API}/{number}/versions", json={"mapping": mapping})
    changed = mapping | {"exclude": [2]}
    second = client.post(f"{API}/{number}/versions", json={"mapping": changed})
    again = client.post(f"{API}/{number}/versions", json={"mapping": mapping})

    assert [one.status_code for one in (first, second, again)] == [201, 201, 200]
    assert (again.json()["is_new"], again.json()["version"]["number"]) == (False, 1)
    listed = client.get(f"{API}/{number}/versions").json()["data"]
    assert [(one["number"], one["is_current"]) for one in listed] == [(2, False), (1, True)]


def test_upload_can_include_mapping(client: TestClient) -> None:
    mapping = {"shape": "text", "roles": {"text": ["text"]}}
    sent = {"file": ("films.csv", REVIEWS.encode())}

    made = client.post(API, files=sent, data={"mapping": json.dumps(mapping)}).json()

    assert (made["kind"], made["train_rows"]) == ("text", 12)
    rows = client.get(f"{API}/{made['id']}/rows", params={"limit": 1}).json()["data"]
    assert rows == [{"number": 1, "source": 2, "text": "A film number 0"}]


def test_invalid_mapping_is_rejected(client: TestClient) -> None:
    sent = {"file": ("films.csv", REVIEWS.encode())}
    answer = client.post(API, files=sent, data={"mapping": '{"shape": "poem", "roles": {}}'})

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, "mapping")


def test_api_preview_saves_nothing(client: TestClient) -> None:
    number = draft(client, REVIEWS)

    found = client.post(f"{API}/{number}/mapping/preview", json={"rows": 2}).json()

    assert [one["row"]["messages"][1]["content"] for one in found["data"]] == ["bad", "good"]
    assert client.get(f"{API}/{number}/versions").json()["data"] == []


def test_api_can_select_another_version(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    mapping = client.get(f"{API}/{number}/detection").json()["mapping"]
    for exclude in ([], [2]):
        client.post(f"{API}/{number}/versions", json={"mapping": mapping | {"exclude": exclude}})

    changed = client.patch(f"{API}/{number}", json={"version": 1}).json()

    assert (changed["version"], changed["train_rows"]) == (1, 12)


def test_api_cannot_delete_version_in_use(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    assert client.delete(f"{API}/1/versions/1").status_code == 409
    assert client.delete(f"{API}/1/versions/9").status_code == 404


def test_new_experiment_preselects_dataset(client: TestClient) -> None:
    number = draft(client, REVIEWS)
    client.post(f"/datasets/{number}/mapping", data=form_of(screen(client, number)))

    page = parse_page(client.get(f"/new?from=dataset:{number}").text)

    assert form_of(page)["dataset"] == "pets"


MIXED = "".join(
    json.dumps({"prompt": f"Question {i}?", "completion": "Yes.", "images": ["a.jpg"] * (i < 2)})
    + "\n"
    for i in range(5)
)


def test_rows_with_images_can_be_left_out(client: TestClient) -> None:
    number = draft(client, MIXED, "mixed.jsonl")

    page = screen(client, number)
    chosen = form_of(page) | {"media": "leave_out"}
    client.post(f"/datasets/{number}/mapping", data=chosen)

    assert "please check" in page.one("section", **{"aria-labelledby": "seen"}).text
    made = client.get(f"{API}/{number}").json()
    assert (made["train_rows"], made["removed"]) == (3, {"media": 2})


@pytest.mark.parametrize(
    ("address", "sent"),
    [("/datasets", {}), (API, {}), ("/v1/files", {"purpose": "fine-tune"})],
)
def test_file_with_images_is_rejected_and_not_stored(
    client: TestClient, address: str, sent: dict[str, str]
) -> None:
    before = len(client.get(API).json()["data"])
    part = {"type": "image_url", "image_url": {"url": "https://example.com/cat"}}
    row = json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()

    answer = client.post(address, files={"file": ("a.jsonl", row)}, data=sent)

    assert answer.is_client_error
    assert "messages: image_url" in answer.text
    assert len(client.get(API).json()["data"]) == before


@pytest.mark.parametrize(
    ("row", "shape", "told"),
    [
        ({"prompt": "q", "answers": ["a", "b"], "scores": [1, 0]}, "ranked", "Only the best and"),
        ({"text": "how warm is it", "score": 0.25}, "regression", "trained on as text"),
    ],
)
def test_untrained_parts_are_reported_before_saving(
    client: TestClient, row: dict[str, Any], shape: str, told: str
) -> None:
    rows = "".join(f"{json.dumps(row | {'prompt': f'q{i}'})}\n" for i in range(20))
    number = draft(client, rows, "rows.jsonl")
    seen = client.get(f"/api/v1/datasets/{number}/detection").json()
    page = client.get(f"/datasets/{number}/mapping").text

    assert seen["mapping"]["shape"] == shape
    assert told in seen["not_learnt"]
    assert page.index(told) < page.index("Save dataset")


def test_pairs_are_used_whole_by_one_method_and_half_by_another(client: TestClient) -> None:
    row = {"chosen": "a", "rejected": "b"}
    rows = "".join(f"{json.dumps(row | {'prompt': f'q{i}'})}\n" for i in range(20))
    number = draft(client, rows, "pairs.jsonl")
    page = client.get(f"/datasets/{number}/mapping").text

    assert client.get(f"/api/v1/datasets/{number}/detection").json()["not_learnt"] == ""
    assert page.index("Learn from comparisons") < page.index("Learn from answers")
    assert "Rejected answers are not used" in page


def test_ratings_are_used_by_one_method_and_the_good_half_by_another(client: TestClient) -> None:
    rows = [{"prompt": f"q{i}", "completion": "a", "label": i % 2 > 0} for i in range(20)]
    number = draft(client, "".join(f"{json.dumps(row)}\n" for row in rows), "rated.jsonl")
    page = client.get(f"/datasets/{number}/mapping").text

    assert client.get(f"/api/v1/datasets/{number}/detection").json()["not_learnt"] == ""
    assert page.index("Learn from ratings") < page.index("Learn from answers")
    assert "Answers rated bad are not used" in page


def test_answers_rated_bad_are_counted(client: TestClient) -> None:
    rows = [{"prompt": f"q{i}", "completion": "a", "label": i % 4 != 0} for i in range(20)]
    number = draft(client, "".join(f"{json.dumps(row)}\n" for row in rows), "rows.jsonl")
    page = parse_page(client.get(f"/datasets/{number}/mapping").text).one(id="preview").text

    assert "Of all 20 rows, 20 are usable, 5 of them rated bad." in " ".join(page.split())


CHINESE = "prompt,completion\n今天天气怎么样？,今天天气很好，我们去公园散步吧。\n"


def send(client: TestClient, content: bytes, filename: str, **sent: str) -> Any:  # noqa: ANN401 -- the client's response
    return client.post(API, files={"file": (filename, content)}, data=sent)


def test_detected_encoding_is_shown_with_samples_and_alternatives(client: TestClient) -> None:
    number = send(client, CHINESE.encode("gbk"), "a.csv", draft="true").json()["id"]

    page = screen(client, number)
    chosen = screen(client, number, "?encoding=big5")
    client.post(f"/datasets/{number}/mapping", data=form_of(page))

    samples = page.one("form", **{"aria-labelledby": "file-title"})
    assert "Chinese, simplified (GB18030, GBK) in use 今天天气怎么样" in samples.text
    assert "今天天气怎么样" not in chosen.one("div", class_="scroller").text
    assert form_of(chosen)["file.encoding"] == "cp950"
    made = client.get(f"{API}/{number}").json()
    assert made["mapping"]["file"]["encoding"] == "gb18030"
    assert "今天天气很好" in client.get(f"/datasets/{number}").text


def test_api_reports_detected_encoding_and_accepts_another(client: TestClient) -> None:
    number = send(client, CHINESE.encode("gbk"), "a.csv", draft="true").json()["id"]

    seen = client.get(f"{API}/{number}/detection").json()
    other = client.get(f"{API}/{number}/detection", params={"encoding": "latin-1"}).json()

    assert seen["encodings"][0]["encoding"] == "gb18030"
    assert seen["questions"][0].startswith("The text is not UTF-8.")
    assert other["mapping"]["file"]["encoding"] == other["encodings"][0]["encoding"] == "iso8859-1"


BARS = "Where is my order, please?|It left on Monday.\nMay I return it?|Yes, of course.\n"


def test_detected_separator_and_missing_header_need_confirmation(client: TestClient) -> None:
    number = send(client, BARS.encode(), "a.csv", draft="true").json()["id"]

    seen = client.get(f"{API}/{number}/detection").json()
    page = screen(client, number)
    choices = page.one("form", **{"aria-labelledby": "file-title"})
    chosen = screen(client, number, "?separator=%2C&header=yes")
    client.post(f"/datasets/{number}/mapping", data=form_of(page))

    read_as = {"encoding": "", "sheet": "", "separator": "|", "header": "no"}
    assert seen["mapping"]["file"] == read_as
    assert seen["sureness"] == "guess"
    assert [question.split(".")[0] for question in seen["questions"][:2]] == [
        "The separator seems to be |",
        "The first line seems to be data, not column names",
    ]
    assert dict(form_fields(choices))["separator"] == "|"
    assert dict(form_fields(choices))["header"] == "no"
    assert "please?|It left on Monday." in chosen.one("div", class_="scroller").text
    (first, _second) = client.get(f"{API}/{number}/rows").json()["data"]
    assert first["messages"][1]["content"] == "It left on Monday."


def test_separator_sent_with_file_is_used(client: TestClient) -> None:
    content = b"prompt|completion\na, b|c\n"

    made = send(client, content, "a.csv", separator="|").json()
    unknown = send(client, content, "b.csv", separator="#")

    assert made["mapping"]["file"]["separator"] == "|"
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (422, "separator")


def test_unknown_encoding_is_rejected(client: TestClient) -> None:
    number = send(client, CHINESE.encode("gbk"), "a.csv", draft="true").json()["id"]

    page = client.get(f"/datasets/{number}/mapping", params={"encoding": "klingon"})
    answer = client.get(f"{API}/{number}/detection", params={"encoding": "klingon"})

    assert page.status_code == answer.status_code == 422
    assert "Unknown encoding: klingon." in page.text


def test_encoding_sent_with_file_is_used(client: TestClient) -> None:
    content = "prompt,completion\nПривет,мир\n".encode("cp1251")

    made = send(client, content, "a.csv", encoding="latin-1").json()
    unknown = send(client, content, "b.csv", encoding="klingon")

    rows = client.get(f"{API}/{made['id']}/rows").json()["data"]
    assert rows[0]["messages"][0]["content"] == "Ïðèâåò"
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (422, "encoding")
