"""What a recipe will need, by REST and in the form."""

from fastapi.testclient import TestClient

from tests.reading import read
from tests.web.test_plan import advised, decoder, model

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
