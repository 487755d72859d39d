"""How well a model gives each label or number: on its run's page, and in REST."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.label_reports import LABEL_REPORTS, Confusion, LabelReport, LabelScore
from studio.protocols.number_reports import NUMBER_REPORTS, NumberReport, TargetScore
from studio.protocols.run_dir import RunDir
from studio.services.results import label_results
from studio.settings import Settings
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page

ROUTE = "/api/v1/runs/1/labels"


def score(label: str, right: int, given: int, support: int) -> LabelScore:
    precision, recall = right / max(given, 1), right / max(support, 1)
    f1 = 2 * right / max(given + support, 1)
    return LabelScore(
        label=label, precision=precision, recall=recall, f1=f1, support=support, given=given
    )


def report(step: int, macro_f1: float, **changes: Any) -> LabelReport:  # noqa: ANN401 -- any field of a report
    values = {
        "step": step,
        "texts": 10,
        "macro_f1": macro_f1,
        "threshold": None,
        "labels": [score("news", 6, 7, 8), score("sport", 1, 3, 2), score("rest", 0, 0, 0)],
        "confusions": [
            Confusion(true="news", given="news", count=6),
            Confusion(true="news", given="sport", count=2),
            Confusion(true="sport", given="sport", count=1),
            Confusion(true="sport", given="news", count=1),
        ],
    }
    return LabelReport.model_validate(values | changes)


@pytest.fixture
def folder(engine: Engine, settings: Settings) -> RunDir:
    """Make a finished classifier that has validated twice, better the first time."""
    with unit_of_work(engine) as db:
        run = make_finished_run(db, "labels", method="classify")
    folder = RunDir(settings.runs / str(run.id))
    folder.root.mkdir(parents=True)
    LABEL_REPORTS.append(folder, report(0, 0.7))
    LABEL_REPORTS.append(folder, report(20, 0.6))
    return folder


@pytest.mark.usefixtures("folder")
def test_page_shows_each_label_and_which_it_is_taken_for(client: TestClient) -> None:
    table, grid = parse_page(client.get("/runs/1").text).one(id="main").all("table", class_="grid")

    rows = [[cell.text for cell in row.all("td")] for row in table.all("tr")]
    assert rows[1:] == [
        ["0.86", "0.75", "0.80", "8"],
        ["0.33", "0.50", "0.40", "2"],
        ["not measured", "0"],
    ]
    cells = grid.all("td")
    assert [cell.text for cell in cells] == ["6", "2", "0", "1", "1", "0", "0", "0", "0"]
    assert [cell.attributes["data-share"] for cell in cells[:6]] == ["4", "1", "0", "2", "2", "0"]
    outlined = [i for i, cell in enumerate(cells) if "right" in cell.attributes["class"].split()]
    assert outlined == [0, 4, 8]


@pytest.mark.usefixtures("folder")
def test_api_returns_the_newest_report_or_that_of_the_best_weights(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        best = {"checkpoints": {"load_best_model_at_end": True}}
        run = make_finished_run(db, "best", method="classify", **best)
    other = RunDir(settings.runs / str(run.id))
    other.root.mkdir(parents=True)
    for one in LABEL_REPORTS.read(RunDir(settings.runs / "1")):
        LABEL_REPORTS.append(other, one)
    LABEL_REPORTS.append(other, report(40, 0.1))

    assert client.get(ROUTE).json()["step"] == 20
    assert client.get(f"/api/v1/runs/{run.id}/labels").json()["step"] == 20
    assert client.get(ROUTE).json()["labels"][0]["support"] == 8


def test_api_says_that_nothing_is_measured(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "writer")

    assert client.get(ROUTE).status_code == 409
    assert "Only classification" in client.get(ROUTE).json()["error"]["hint"]


def test_repeated_validation_replaces_the_earlier_one(folder: RunDir) -> None:
    LABEL_REPORTS.append(folder, report(20, 0.9))
    with (folder.root / "label_reports.jsonl").open("a") as lines:
        lines.write('{"step": 40, ')

    assert [(one.step, one.macro_f1) for one in LABEL_REPORTS.read(folder)] == [(0, 0.7), (20, 0.9)]
    LABEL_REPORTS.append(folder, report(0, 0.1))
    assert [one.step for one in LABEL_REPORTS.read(folder)] == [0]


def test_many_labels_are_shown_by_their_most_frequent_mistakes() -> None:
    labels = [score(f"label {i}", 1, 2, 2) for i in range(30)]
    confusions = [
        Confusion(true="label 1", given="label 2", count=1),
        Confusion(true="label 3", given="label 3", count=9),
        Confusion(true="label 3", given="label 4", count=5),
    ]
    found = label_results.summarise(report(1, 0.5, labels=labels, confusions=confusions))

    assert found.grid == []
    assert [one.true for one in found.mistakes] == ["label 3", "label 1"]


def test_page_and_api_show_how_near_each_number_is(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db, "prices", method="regress")
    other = RunDir(settings.runs / str(run.id))
    other.root.mkdir(parents=True)
    assert client.get("/api/v1/runs/1/numbers").status_code == 409
    price = TargetScore(
        target="price", rmse=120.5, mae=80, r2=0.91, spearman=0.95, mean=5e4, deviation=400
    )
    NUMBER_REPORTS.append(other, NumberReport(step=40, texts=30, targets=[price]))

    row = parse_page(client.get("/runs/1").text).one(id="main").one("table", class_="grid")
    cells = [cell.text for cell in row.all("td")]
    assert cells == ["0.910", "120.5", "80", "0.950", "50000 ± 400"]
    assert client.get("/api/v1/runs/1/numbers").json()["targets"][0]["rmse"] == 120.5
