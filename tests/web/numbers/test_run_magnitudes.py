"""The numerics of a run show where its numbers fall on each format."""

import json

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import MagnitudeHistogram, MagnitudesMeasured
from studio.protocols.run_dir import RunDir
from studio.settings import Settings
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page


def test_run_without_measurement_says_so(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "a run")

    assert "Not measured yet." in client.get("/runs/1/numerics").text


def test_histograms_are_drawn_with_findings(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "a run")
    folder = RunDir(settings.runs / "1")
    folder.root.mkdir(parents=True, exist_ok=True)
    counted = MagnitudeHistogram(zero=0, nonfinite=0, lowest=-30, shares=[0.25, 0, 0.75])
    folder.events.append(MagnitudesMeasured(step=1, histograms={"gradients": counted}))

    page = parse_page(client.get("/runs/1/numerics").text)

    finding = "100 % of your gradients are too small for float16 and become 0."
    assert finding in page.text
    strip = page.one("svg", class_="powers")
    assert strip.attributes["aria-label"] == "Your gradients are between 2^-30 and 2^-27."
    assert len(strip.all("rect")) == 3


def test_histograms_have_their_values_for_tables_and_files(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "a run")
    folder = RunDir(settings.runs / "1")
    folder.root.mkdir(parents=True, exist_ok=True)
    first = MagnitudeHistogram(zero=0, nonfinite=0, lowest=-30, shares=[0.25, 0, 0.75])
    latest = MagnitudeHistogram(zero=0, nonfinite=0, lowest=-29, shares=[1])
    told = {"gradients": first}, {"gradients": latest, "weights": latest}
    for step, histograms in enumerate(told, start=1):
        folder.events.append(MagnitudesMeasured(step=step, histograms=histograms))

    page = parse_page(client.get("/runs/1/numerics").text)
    plot = page.one("div", **{"data-drawing": "magnitudes"})
    heads, *rows = json.loads(plot.attributes["data-cells"] or "")
    edges = json.loads(plot.attributes["data-edges"] or "")

    assert heads == [
        "Power of two",
        *("Weights", "Weights at step 1", "Gradients", "Gradients at step 1"),
    ]
    assert [row for row in rows if row[0] in (-30, -29)] == [
        [-30, 0, None, 0, 0.25],
        [-29, 1, None, 1, 0],
    ]
    assert (len(edges), edges[rows.index([-29, 1, None, 1, 0])]) == (len(rows) + 1, "2⁻²⁹")
