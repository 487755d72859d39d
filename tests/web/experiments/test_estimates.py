"""What a recipe will need, by REST and in the form."""

import json
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import TaskStatus
from studio.hardware import detect
from studio.intake.quality.length_stats import TOKEN_STATS_ADAPTER, PartStats, RowLength, TokenStats
from studio.recipe.dotted_keys import merge
from studio.services.tasks import tasks
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page
from tests.web.experiments.test_plans import HTMX, advised, decoder, filled, model, previewed

__all__ = ["decoder", "model"]

IN_BATCHES = {"optimisation__per_device_train_batch_size": "4096"}
FULL = {"dataset": "starter", "precision": "fp32", "adapter": {"kind": "full"}}


def estimate(client: TestClient, **recipe: object) -> dict[str, Any]:
    answer = client.post("/api/v1/estimate", json={"recipe": FULL | recipe})
    found: dict[str, Any] = answer.json()
    return found


def in_batches(size: int) -> dict[str, Any]:
    return {"optimisation": {"per_device_train_batch_size": size}}


def test_estimate_and_plan_agree(client: TestClient, decoder: str) -> None:
    plan = client.post("/api/v1/plan", json={"recipe": FULL | {"base_model": decoder}}).json()

    told = estimate(client, base_model=decoder)
    assert told["memory"] is not None
    assert {name: plan[name] for name in told} == told


def test_time_is_unknown_before_first_run(client: TestClient, decoder: str) -> None:
    time = estimate(client, base_model=decoder, optimisation={"max_steps": 7})["time"]

    assert (time["steps"], time["seconds"]) == (7, None)


def test_memory_of_unmeasured_model_is_unknown(client: TestClient, model: str) -> None:
    assert estimate(client, base_model=model)["memory"] is None


def test_suggested_change_makes_run_fit(client: TestClient, decoder: str) -> None:
    asked = {"base_model": decoder} | in_batches(4096)
    told = estimate(client, **asked)
    mended = estimate(client, **merge(asked, told["smallest_change"]["change"]))
    page = parse_page(previewed(client, base_model=decoder, precision="fp32", **IN_BATCHES))

    assert (told["memory"]["verdict"], mended["memory"]["verdict"]) == ("too large", "fits")
    assert mended["smallest_change"] is None
    assert "does not fit in " in page.one("figcaption").text
    (button,) = [one for one in page.all("button") if one.text == told["smallest_change"]["title"]]
    assert json.loads(button.attributes["data-repair"])["optimisation.per_device_train_batch_size"]


def test_largest_batch_fits_and_double_does_not(client: TestClient, decoder: str) -> None:
    way = estimate(client, base_model=decoder, **in_batches(1))["largest_batch"]
    size = way["change"]["optimisation"]["per_device_train_batch_size"]
    once, twice = (
        estimate(client, base_model=decoder, **in_batches(times * size))["memory"]["verdict"]
        for times in (1, 2)
    )

    assert once == "fits"
    assert (twice == "fits") == way["title"].endswith("still fits")


@pytest.mark.parametrize(
    ("recipe", "parts"),
    [
        ({}, {"weights", "optimizer", "activations", "scores", "holes", "runtime"}),
        ({"precision": "bf16", "adapter": {"kind": "lora"}}, {"adapter", "copies"}),
        ({"precision": "bf16_kahan"}, {"compensation"}),
    ],
)
def test_memory_estimate_lists_parts(
    client: TestClient, decoder: str, recipe: dict[str, Any], parts: set[str]
) -> None:
    memory = estimate(client, base_model=decoder, **recipe)["memory"]

    assert parts <= memory["parts"].keys()
    assert memory["total"] == sum(memory["parts"].values())


def test_time_estimate_has_interval_after_similar_run(
    client: TestClient, engine: Engine, decoder: str
) -> None:
    lengths = {"longest_example": 90, "longest_answer": 40, "train_rows": 10, "train_tokens": 500}
    with unit_of_work(engine) as db:
        run = make_finished_run(db, base_model=decoder, precision="fp32", adapter={"kind": "full"})
        run.resolved = lengths | {"device_name": detect().device_name}
        run.metrics = run.metrics | {"train_seconds": 5.0}
    time = estimate(client, base_model=decoder, optimisation={"max_steps": 7})["time"]
    page = parse_page(advised(client, base_model=decoder, precision="fp32"))

    assert (time["runs"], time["tokens"], time["is_calibrated"]) == (1, 7 * 8 * 50, False)
    assert 0 < time["least_seconds"] < time["seconds"] < time["most_seconds"]
    assert ", between " in page.one(class_="lasting").text


def test_calibration_is_queued_once(client: TestClient, decoder: str) -> None:
    asked = {"recipe": FULL | {"base_model": decoder}}

    first, again = (client.post("/api/v1/estimate/calibration", json=asked) for _ in range(2))

    assert first.status_code == 202
    assert first.json()["kind"] == "calibrate"
    assert again.json()["id"] == first.json()["id"]


def test_form_offers_calibration_when_time_is_unknown(client: TestClient, decoder: str) -> None:
    page = parse_page(advised(client, base_model=decoder, precision="fp32"))

    assert "No time estimate yet. Run a quick calibration." in page.one(class_="lasting").text


def test_calibration_starts_with_one_click(client: TestClient, decoder: str) -> None:
    page = parse_page(client.get("/new?preset=full").text)
    form = filled(client, base_model=decoder, precision="fp32")
    shown = parse_page(client.post("/new/calibrate", data=form, headers=HTMX).text)

    assert page.one("button", **{"hx-post": "/new/calibrate"}).text == "Train a few steps"
    assert "Waiting in the queue" in shown.one(class_="chore").text


def test_finished_run_shows_estimates_and_their_errors(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
        run.estimate = {"memory": {"total": 110e6, "length": 9}, "timing": {"seconds": 30.0}}
        run.resolved, run.metrics = {"peak_memory": "resident"}, {"peak_memory_bytes": 100e6}
        assert run.finished_at is not None
        run.claimed_at = run.finished_at - timedelta(seconds=40)
    page = parse_page(client.get(f"/runs/{run.id}/details").text)

    figures = page.one(class_="figures").all("div")
    shown = {one.one("dt").text: one.one("dd").text for one in figures}
    assert {title: text for title, text in shown.items() if text != "–"} == {  # noqa: RUF001 -- a dash
        "Estimated peak": "110 MB (+10 %)",
        "Estimated time": "30 s (\N{MINUS SIGN}25 %)",
    }


def measured(client: TestClient, engine: Engine, decoder: str) -> None:
    """Have a dry run done, as its process would say it went."""
    asked = {"recipe": FULL | {"base_model": decoder}}
    answer = client.post("/api/v1/estimate/measurement", json=asked)
    parts = {"weights": 230_000_000, "scores": 20_000_000}
    lengths = {"longest_example": 90, "longest_answer": 40, "train_rows": 10, "train_tokens": 500}
    with unit_of_work(engine) as db:
        chore = tasks.get(db, answer.json()["id"])
        chore.status = TaskStatus.SUCCEEDED
        chore.result = {"at_peak": parts} | lengths


def test_dry_run_makes_estimate_and_plan_exact(
    client: TestClient, engine: Engine, decoder: str
) -> None:
    closed = estimate(client, base_model=decoder)["memory"]
    measured(client, engine, decoder)
    memory = estimate(client, base_model=decoder)["memory"]
    plan = client.post("/api/v1/plan", json={"recipe": FULL | {"base_model": decoder}}).json()

    assert (closed["is_exact"], closed["closed_total"]) == (False, None)
    assert memory["is_exact"]
    # It knows by now how long the examples are.
    assert memory["closed_total"] < closed["total"]
    assert (memory["parts"]["weights"], memory["length"]) == (230_000_000, 90)
    assert plan["memory"] == memory


def test_dry_run_of_quantised_model_is_rejected(client: TestClient, decoder: str) -> None:
    asked = FULL | {"base_model": decoder, "adapter": {"kind": "lora", "base_dtype": "nf4"}}
    answer = client.post("/api/v1/estimate/measurement", json={"recipe": asked})

    assert answer.status_code == 422
    assert "quantising them needs their values" in answer.text


def test_form_offers_dry_run_and_shows_its_result(
    client: TestClient, engine: Engine, decoder: str
) -> None:
    before = parse_page(advised(client, base_model=decoder, precision="fp32"))
    form = filled(client, base_model=decoder, precision="fp32")
    shown = parse_page(client.post("/new/measure", data=form, headers=HTMX).text)
    with unit_of_work(engine) as db:
        chore = tasks.get(db, 1)
        chore.status = TaskStatus.SUCCEEDED
        parts = {"weights": 230_000_000}
        lengths = {"longest_example": 9, "longest_answer": 4, "train_rows": 1, "train_tokens": 5}
        chore.result = {"at_peak": parts} | lengths
    after = parse_page(advised(client, base_model=decoder, precision="fp32"))

    assert before.one("button", **{"hx-post": "/new/measure"}).text == "Count every tensor"
    assert "Simulating a step" in shown.one(class_="chore").text
    assert "From a dry run of one step on your data" in after.one("figcaption").text
    assert "the formula estimated" in after.one("figcaption").text
    assert after.all("button", **{"hx-post": "/new/measure"}) == []


def rows_of(number: int, *, longest: int) -> dict[str, Any]:
    """Return what a chore says that has counted rows, one of them longer than all others."""
    train = PartStats(rows=number, tokens=10 * number, learnt=number, most_learnt=7)
    for length in (longest, *[10] * (number - 1)):
        train.lengths.add(length)
        train.needs.add(5)
    train.longest = [RowLength(longest, 1)]
    told: dict[str, Any] = TOKEN_STATS_ADAPTER.dump_python(TokenStats(train=train), mode="json")
    return told


def test_unread_rows_are_counted_automatically(
    client: TestClient, engine: Engine, decoder: str
) -> None:
    before = parse_page(advised(client, base_model=decoder, precision="fp32"))
    form = filled(client, base_model=decoder, precision="fp32")
    (ask,) = before.all("div", **{"hx-post": "/new/lengths"})
    shown = parse_page(client.post("/new/lengths", data=form, headers=HTMX).text)
    with unit_of_work(engine) as db:
        chore = tasks.get(db, 1)
        chore.status, chore.result = TaskStatus.SUCCEEDED, rows_of(20, longest=59)
    after = parse_page(advised(client, base_model=decoder, precision="fp32"))
    memory = estimate(client, base_model=decoder)["memory"]

    assert ask.attributes["hx-trigger"] == "load"
    assert "Waiting in the queue" in shown.one(class_="chore").text
    assert "no run has read this data" in before.one("figcaption").text
    assert "for examples of 59 tokens; " in after.one("figcaption").text
    assert after.all("div", **{"hx-post": "/new/lengths"}) == []
    assert (memory["length"], memory["knows_lengths"]) == (59, True)


def test_failed_count_is_not_retried_automatically(
    client: TestClient, engine: Engine, decoder: str
) -> None:
    form = filled(client, base_model=decoder, precision="fp32")
    client.post("/new/lengths", data=form, headers=HTMX)
    with unit_of_work(engine) as db:
        tasks.get(db, 1).status = TaskStatus.FAILED
    page = parse_page(advised(client, base_model=decoder, precision="fp32"))

    assert page.all("div", **{"hx-post": "/new/lengths"}) == []
    assert page.one("button", **{"hx-post": "/new/lengths"}).text == "Count tokens"


def test_packed_rows_offer_no_token_count(client: TestClient, decoder: str) -> None:
    packed = {"base_model": decoder, "precision": "fp32", "data__packing": "true"}
    page = parse_page(advised(client, **packed))

    assert [one.attributes for one in page.all() if "hx-post" in one.attributes] != []
    assert page.all(**{"hx-post": "/new/lengths"}) == []
    assert " read them. No time estimate yet." in page.one(class_="lasting").text


def test_cancelling_dry_run_saves_nothing(client: TestClient, decoder: str) -> None:
    form = filled(client, base_model=decoder, precision="fp32")
    client.post("/new/measure", data=form, headers=HTMX)
    answer = client.post("/chores/1/cancel?then=/new/measured", headers=HTMX)

    shown = parse_page(answer.text).one(class_="chore")
    assert shown.one("p").text == "Cancelled. Nothing was saved."
