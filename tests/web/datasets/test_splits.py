"""Rows held back, by every way that the mapping screen offers: from the press to the files."""

import io
import json
import zipfile
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.run_dir import JobSpec, RunDir
from studio.services.runs import runs
from studio.settings import Settings
from studio.worker.processes import run_dir_setup
from tests.support.factories import make_run
from tests.support.page_reader import form_fields, parse_page

API = "/api/v1/datasets"


def rows(first: int, last: int, **more: str) -> bytes:
    return "".join(
        json.dumps({"question": f"What is {i}?", "answer": f"{i}."} | more) + "\n"
        for i in range(first, last)
    ).encode()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def bring(
    client: TestClient, content: bytes, filename: str = "sums.jsonl", **changes: str
) -> dict[str, Any]:
    """Bring a file by the pages, say how it is split, and confirm."""
    screen = client.post("/datasets", files={"file": (filename, content)})
    form = dict(form_fields(parse_page(screen.text).one("form", id="form")))
    done = client.post(screen.url.path, data=form | changes)
    made: dict[str, Any] = client.get(f"{API}/{done.url.path.rpartition('/')[2]}").json()
    return made


def questions(client: TestClient, dataset: dict[str, Any], part: str) -> list[str]:
    found = client.get(f"{API}/{dataset['id']}/rows", params={"split": part}).json()["data"]
    return [row["messages"][0]["content"] for row in found]


def test_column_can_define_split(client: TestClient) -> None:
    content = rows(0, 3, use="learn") + rows(3, 5, use="check") + rows(5, 6, use="hide")
    made = bring(
        client,
        content,
        **{
            "split.kind": "column",
            "split.column": "use",
            "split.train": "learn",
            "split.validation": "check",
        },
    )

    assert questions(client, made, "train") == [f"What is {i}?" for i in range(3)]
    assert questions(client, made, "validation") == ["What is 3?", "What is 4?"]
    assert made["removed"] == {"other_part": 1}


def test_column_with_common_split_values_is_detected(client: TestClient) -> None:
    made = bring(client, rows(0, 3, split="train") + rows(3, 5, split="test"))

    assert (made["mapping"]["split"]["kind"], made["train_rows"], made["validation_rows"]) == (
        "column",
        3,
        2,
    )


def test_another_dataset_can_be_validation_split(client: TestClient) -> None:
    held = bring(client, rows(50, 54), "held.jsonl")
    made = bring(client, rows(0, 3), **{"split.kind": "dataset", "split.dataset": held["name"]})

    assert (made["train_rows"], made["validation_rows"]) == (3, 4)
    assert questions(client, made, "validation") == [f"What is {i}?" for i in range(50, 54)]


def test_run_keeps_validation_rows_of_deleted_dataset(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    held = bring(client, rows(50, 54), "held.jsonl")
    made = bring(client, rows(0, 3), **{"split.kind": "dataset", "split.dataset": held["name"]})
    with unit_of_work(engine) as db:
        run = make_run(db, dataset=made["name"]).id or 0
    client.delete(f"{API}/{held['id']}").raise_for_status()

    folder = RunDir(settings.runs / str(run))
    with unit_of_work(engine) as db:
        run_dir_setup.write_run_dir(db, runs.get(db, run), folder, settings)

    spec = JobSpec.model_validate_json(folder.job.read_text())
    assert spec.validation is not None
    assert len(spec.validation.read_text().splitlines()) == 4


def test_archive_files_are_split_by_name_by_default(
    client: TestClient,
) -> None:
    archive = {"train.jsonl": rows(0, 3), "dev.jsonl": rows(3, 5) + b"oops\n"}
    made = bring(client, zipped(archive), "sums.zip")

    assert questions(client, made, "train") == [f"What is {i}?" for i in range(3)]
    assert questions(client, made, "validation") == ["What is 3?", "What is 4?"]
    (problem,) = made["problems"]
    assert (problem["rows"], problem["places"]) == ([6], ["3 of dev.jsonl"])


def test_archive_row_is_located_by_line_in_its_file(client: TestClient) -> None:
    second = b'{"question": "Who?", "answer": ""}\n'
    archive = {"train.jsonl": rows(0, 3), "dev.jsonl": rows(3, 5) + second}
    made = bring(client, zipped(archive), "sums.zip")

    told = parse_page(client.get(f"/datasets/{made['id']}").text)
    shown = parse_page(client.get(f"/datasets/{made['id']}?original=6").text)

    cells = [cell.text for row in told.one("tbody").all("tr") for cell in row.all("td")]
    assert "line 3 of dev.jsonl Show rows" in cells
    assert shown.one("section", id="original").one("h3").text == "Line 3 of dev.jsonl"


def test_split_by_file_name_is_offered_only_for_archives(client: TestClient) -> None:
    def offered(content: bytes, filename: str) -> bool:
        page = parse_page(client.post("/datasets", files={"file": (filename, content)}).text)
        (choice,) = [
            one for one in page.all("label", class_="choice") if one.all("input", value="file")
        ]
        return "hidden" not in choice.attributes

    assert offered(zipped({"a.jsonl": rows(0, 3)}), "sums.zip")
    assert not offered(rows(0, 3), "sums.jsonl")
