"""What a recipe will need, by REST and in the form."""

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import WorkStatus
from studio.services import chores
from tests.reading import read
from tests.web.test_plan import HTMX, advised, decoder, filled, model

__all__ = ["decoder", "model"]

FULL = {"dataset": "starter", "precision": "fp32", "adapter": {"kind": "full"}}


def estimate(client: TestClient, **recipe: object) -> dict[str, object]:
    answer = client.post("/api/v1/estimate", json={"recipe": FULL | recipe})
    found: dict[str, object] = answer.json()
    return found


def test_estimate_and_plan_answer_the_same(client: TestClient, decoder: str) -> None:
    plan = client.post("/api/v1/plan", json={"recipe": FULL | {"base_model": decoder}}).json()

    assert plan["memory"] is not None
    assert estimate(client, base_model=decoder)["memory"] == plan["memory"]


def test_before_a_first_run_seconds_are_unknown(client: TestClient, decoder: str) -> None:
    time = estimate(client, base_model=decoder, optimisation={"max_steps": 7})["time"]

    assert isinstance(time, dict)
    assert (time["steps"], time["seconds"]) == (7, None)


def test_a_model_nobody_counted_is_said_to_be_unknown(client: TestClient, model: str) -> None:
    assert estimate(client, base_model=model)["memory"] is None


def test_a_calibration_is_queued_once(client: TestClient, decoder: str) -> None:
    asked = {"recipe": FULL | {"base_model": decoder}}

    first, again = (client.post("/api/v1/estimate/calibration", json=asked) for _ in range(2))

    assert first.status_code == 202
    assert first.json()["kind"] == "calibrate"
    assert again.json()["id"] == first.json()["id"]


def test_the_form_says_that_time_is_unknown_and_offers_to_find_out(
    client: TestClient, decoder: str
) -> None:
    page = read(advised(client, base_model=decoder, precision="fp32"))

    assert "unknown until a first run" in page.one(class_="lasting").text


def measured(client: TestClient, engine: Engine, decoder: str) -> None:
    """Have a dry run done, as its process would say it went."""
    asked = {"recipe": FULL | {"base_model": decoder}}
    answer = client.post("/api/v1/estimate/measurement", json=asked)
    parts = {"weights": 230_000_000, "scores": 20_000_000}
    lengths = {"longest_example": 90, "longest_answer": 40, "train_rows": 10, "train_tokens": 500}
    with unit_of_work(engine) as db:
        chore = chores.get(db, answer.json()["id"])
        chore.status = WorkStatus.SUCCEEDED
        chore.result = {"at_peak": parts, "kept": parts} | lengths


def test_a_dry_run_makes_estimate_and_plan_exact(
    client: TestClient, engine: Engine, decoder: str
) -> None:
    closed = estimate(client, base_model=decoder)["memory"]
    measured(client, engine, decoder)
    memory = estimate(client, base_model=decoder)["memory"]
    plan = client.post("/api/v1/plan", json={"recipe": FULL | {"base_model": decoder}}).json()

    assert isinstance(closed, dict)
    assert isinstance(memory, dict)
    assert (closed["is_exact"], closed["closed_total"]) == (False, None)
    assert memory["is_exact"]
    # It knows by now how long the examples are.
    assert memory["closed_total"] < closed["total"]
    assert (memory["parts"]["weights"], memory["length"]) == (230_000_000, 90)
    assert plan["memory"] == memory


def test_what_no_dry_run_can_follow_is_refused_in_words(client: TestClient, decoder: str) -> None:
    asked = FULL | {"base_model": decoder, "adapter": {"kind": "lora", "base_dtype": "nf4"}}
    answer = client.post("/api/v1/estimate/measurement", json={"recipe": asked})

    assert answer.status_code == 422
    assert "they are packed by their numbers" in answer.text


def test_the_form_offers_to_count_and_then_says_what_was_counted(
    client: TestClient, engine: Engine, decoder: str
) -> None:
    before = read(advised(client, base_model=decoder, precision="fp32"))
    form = filled(client, base_model=decoder, precision="fp32")
    shown = read(client.post("/new/measure", data=form, headers=HTMX).text)
    with unit_of_work(engine) as db:
        chore = chores.get(db, 1)
        chore.status = WorkStatus.SUCCEEDED
        parts = {"weights": 230_000_000}
        lengths = {"longest_example": 9, "longest_answer": 4, "train_rows": 1, "train_tokens": 5}
        chore.result = {"at_peak": parts, "kept": parts} | lengths
    after = read(advised(client, base_model=decoder, precision="fp32"))

    assert before.one("button", **{"hx-post": "/new/measure"}).text == "Measure exactly"
    assert "Going through a step" in shown.one(class_="chore").text
    assert "By a dry run of a step" in after.one("figcaption").text
    assert "the closed form said" in after.one("figcaption").text
    assert after.all("button", **{"hx-post": "/new/measure"}) == []


def test_calling_it_off_leaves_the_form_as_it_is(client: TestClient, decoder: str) -> None:
    form = filled(client, base_model=decoder, precision="fp32")
    client.post("/new/measure", data=form, headers=HTMX)
    answer = client.post("/chores/1/cancel?then=/new/measured", headers=HTMX)

    shown = read(answer.text).one(class_="chore")
    assert shown.one("p").text == "Cancelled. Nothing is kept of it."
