"""The quick start: one press from the first page to a run."""

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Model
from studio.methods import DEFAULT_METHOD, get_method
from studio.recipe.precision import AUTO
from studio.services.runs import runs
from tests.support.page_reader import field_error, form_fields, parse_page


def test_quick_start_queues_same_run_as_its_form(client: TestClient, engine: Engine) -> None:
    landed = client.post("/quick-start").url.path
    form = parse_page(client.get("/new?preset=quick").text).one(id="form")
    client.post("/new", data=dict(form_fields(form)))

    assert landed == "/runs/1"
    with unit_of_work(engine) as db:
        pressed, from_form = runs.get(db, 1), runs.get(db, 2)
        assert pressed.recipe == from_form.recipe
        assert (pressed.name, from_form.name) == ("quick-1", "quick-2")
        assert pressed.precision_reason, "chosen for this machine, not by the preset"
    assert get_method(DEFAULT_METHOD).presets[0].values.get("precision", AUTO) == AUTO


def test_quick_start_shows_form_with_what_prevents_it(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.delete(db.get_one(Model, 1))

    answer = client.post("/quick-start")

    assert answer.status_code == 422
    problem = field_error(parse_page(answer.text), "base_model")
    assert problem.startswith("There is no model named starter.")
