"""The form of a new experiment, and an experiment's page."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.methods import METHODS
from studio.methods.base import Preset
from studio.recipe.precision import PRECISIONS
from studio.services import experiments
from studio.services.runs import runs
from studio.web.forms.recipe_form import fieldset
from tests.support.factories import make_finished_run, make_run
from tests.support.page_reader import Node, field_error, field_value, form_fields, parse_page

pytestmark = pytest.mark.smoke

RECIPE = METHODS["sft"].recipe


def form(client: TestClient, query: str = "") -> Node:
    return parse_page(client.get(f"/new{query}").text).one(id="form")


def filled(client: TestClient, **changes: str) -> dict[str, str]:
    return dict(form_fields(form(client))) | {
        name.replace("__", "."): value for name, value in changes.items()
    }


def only_run(engine: Engine) -> Run:
    with unit_of_work(engine) as db:
        (run,) = runs.newest(db, runs.RunFilter(), limit=2)
        return run


def test_default_form_can_be_submitted(client: TestClient, engine: Engine) -> None:
    answer = client.post("/new", data=dict(form_fields(form(client))))

    run = only_run(engine)
    assert (answer.url.path, run.status, run.recipe.base_model, run.recipe.adapter.kind) == (
        "/runs/1",
        "queued",
        "starter",
        "full",
    )


def test_form_shows_every_setting(client: TestClient) -> None:
    names = {control.attributes.get("name", "") for control in form(client).all()}

    assert {one.field for one in fieldset(RECIPE, {}).all_inputs()} - names == set()


def test_every_setting_has_help_text(client: TestClient) -> None:
    page = parse_page(client.get("/new").text)

    helps = {
        one.id: page.one(id=f"{one.id}-help").text for one in fieldset(RECIPE, {}).all_inputs()
    }
    assert [name for name, text in helps.items() if not text] == []


@pytest.mark.parametrize(
    "preset",
    [one for one in METHODS["sft"].presets if not one.is_study],
    ids=lambda preset: preset.name,
)
def test_each_preset_can_be_submitted(client: TestClient, engine: Engine, preset: Preset) -> None:
    page = form(client, f"?preset={preset.name}")
    client.post("/new", data=dict(form_fields(page)))

    made, wanted = only_run(engine).recipe, RECIPE.model_validate(preset.values)
    # Which precision is recommended depends on the machine.
    assert made == wanted.model_copy(update={"precision": made.precision})
    assert made.precision in PRECISIONS


def test_form_can_be_prefilled_from_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(
            db, "tone", optimisation={"learning_rate": 1e-5}, adapter={"kind": "lora", "r": 4}
        )

    page = form(client, "?from=run:1")
    assert [
        field_value(page, name) for name in ("name", "optimisation.learning_rate", "adapter.r")
    ] == ["tone 2", "1e-05", "4"]


def test_unknown_source_returns_404(client: TestClient) -> None:
    answers = [client.get(f"/new?from={source}") for source in ("run:9", "moon:1", "run:x")]

    assert [answer.status_code for answer in answers] == [404, 404, 404]


def test_each_precision_shows_its_bit_layout(client: TestClient) -> None:
    page = form(client)

    drawings = [drawing.attributes["aria-label"] for drawing in page.all("svg", role="img")]
    assert drawings[:4] == [
        "16 bits: 1 sign, 8 exponent, 7 mantissa",
        "16 bits: 1 sign, 5 exponent, 10 mantissa",
        "32 bits: 1 sign, 8 exponent, 23 mantissa",
        "19 bits: 1 sign, 8 exponent, 10 mantissa",
    ]


def test_form_lists_all_precisions(client: TestClient) -> None:
    radios = form(client).all("input", type="radio", name="precision")

    assert [radio.attributes["value"] for radio in radios] == ["auto", *PRECISIONS]


def test_invalid_setting_shows_error_at_field(client: TestClient) -> None:
    data = filled(client, optimisation__learning_rate="-1")
    answer = client.post("/new", data=data)

    page = parse_page(answer.text)
    assert (
        answer.status_code,
        field_value(page.one(id="form"), "optimisation.learning_rate"),
        field_error(page, "optimisation.learning_rate"),
    ) == (422, "-1", "Must be more than 0 and at most 1.")


def test_rejected_form_keeps_input(client: TestClient) -> None:
    data = filled(
        client, optimisation__learning_rate="x", name="mine", notes="why", precision="fp32"
    )
    page = parse_page(client.post("/new", data=data).text).one(id="form")

    assert dict(form_fields(page)) == data


def test_error_summary_links_to_fields(client: TestClient) -> None:
    data = filled(client, optimisation__learning_rate="-1", data__max_length="1")
    links = parse_page(client.post("/new", data=data).text).one(id="problems").all("a")

    assert [(link.text, link.attributes["href"]) for link in links] == [
        ("Learning rate", "#optimisation-learning_rate"),
        ("Max sequence length", "#data-max_length"),
    ]


def test_unknown_model_shows_error_at_field(client: TestClient) -> None:
    page = parse_page(client.post("/new", data=filled(client, base_model="startr")).text)

    assert field_error(page, "base_model").startswith("There is no model named startr.")


def test_rejected_form_creates_nothing(client: TestClient, engine: Engine) -> None:
    client.post("/new", data=filled(client, base_model="startr"))
    client.post("/new", data=filled(client, name=" "))

    with unit_of_work(engine) as db:
        assert (list(experiments.newest(db, limit=9)), runs.count(db, runs.RunFilter())) == ([], 0)


def test_name_is_required(client: TestClient) -> None:
    page = parse_page(client.post("/new", data=filled(client, name="")).text)

    assert field_error(page, "name").startswith("Enter a name.")


def test_each_adapter_keeps_what_was_typed_for_it(client: TestClient, engine: Engine) -> None:
    typed = {"adapter.lora.last_layers": "x", "adapter.oft.last_layers": "1"}
    data = filled(client, adapter__kind="oft", adapter__oft_block_size="16") | typed
    redrawn = parse_page(client.post("/new/draft", data=data | {"do": ""}).text).one(id="form")
    client.post("/new", data=data)

    adapter = only_run(engine).recipe.adapter
    assert {name: field_value(redrawn, name) for name in typed} == typed
    assert adapter.model_dump(include={"kind", "oft_block_size", "last_layers"}) == {
        "kind": "oft",
        "oft_block_size": 16,
        "last_layers": 1,
    }


def test_fields_of_unselected_adapter_are_ignored(client: TestClient, engine: Engine) -> None:
    client.post("/new", data=filled(client, adapter__kind="full", adapter__r="nonsense"))

    assert only_run(engine).recipe.adapter.kind == "full"


def test_experiment_lists_its_runs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db, "tone")
        runs.submit(db, experiments.get(db, run.experiment_id))

    page = parse_page(client.get("/experiments/1").text)
    compare = page.one("a", class_="btn", href="/compare?runs=2,1")
    assert (page.one("h1").text, compare.text, len(page.one("tbody").all("tr"))) == (
        "tone",
        "Compare all",
        2,
    )


def test_experiment_can_be_rerun_with_another_seed(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    client.post("/experiments/1/runs", data={"precision": "fp32", "seed": "7"})
    with unit_of_work(engine) as db:
        recipe = runs.get(db, 2).recipe
    assert (recipe.precision, recipe.optimisation.seed) == ("fp32", 7)


def test_experiment_can_be_edited(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    client.post("/experiments/1", data={"name": "new", "tags": "a, b,", "notes": "why"})
    with unit_of_work(engine) as db:
        changed = experiments.get(db, 1)
    assert (changed.name, changed.tags, changed.notes) == ("new", ["a", "b"], "why")


def test_experiment_with_runs_cannot_be_deleted(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    assert client.post("/experiments/1/delete").status_code == 409
