"""The form of a new experiment: presets, what was changed, a text poured in, a copy."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.commands import recipes
from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.recipe import yaml
from studio.services import experiments
from studio.services.runs import runs
from tests.support.factories import make_finished_run, make_recipe
from tests.support.page_reader import Node, field_error, field_value, form_fields, parse_page

pytestmark = pytest.mark.smoke

FULL = {"adapter": {"kind": "full"}}
RATE = "optimisation.learning_rate"


def form(client: TestClient, query: str = "") -> dict[str, str]:
    return dict(form_fields(parse_page(client.get(f"/new{query}").text).one(id="form")))


def drawn(client: TestClient, do: str, data: dict[str, str]) -> Node:
    return parse_page(client.post("/new/draft", data=data | {"do": do}).text)


def changed(page: Node) -> list[str]:
    """Return what the summary says was changed."""
    return [one.one("a").text for one in page.one(class_="changes").all("li")]


def first_run(engine: Engine) -> Run:
    with unit_of_work(engine) as db:
        return runs.get(db, 1)


def test_preset_keeps_chosen_dataset_and_name(client: TestClient) -> None:
    data = form(client) | {"dataset": "mine", "name": "a name", "notes": "why", RATE: "0.5"}
    page = drawn(client, "preset:lora", data).one(id="form")

    kept = [field_value(page, name) for name in ("dataset", "name", "notes", RATE, "adapter.kind")]
    assert kept == ["mine", "a name", "why", "0.0002", "lora"]


def test_preset_replaces_default_name(client: TestClient) -> None:
    page = drawn(client, "preset:full", form(client, "?preset=lora"))

    assert field_value(page.one(id="form"), "name") == "full-1"


def test_changed_setting_is_marked(client: TestClient) -> None:
    page = parse_page(client.get(f"/new?preset=lora&{RATE}=1e-3&optimisation.seed=42").text)

    marked = [one.one("label").text for one in page.all(class_="changed")]
    assert (marked, changed(page)) == (["Learning rate"], ["Learning rate"])


def test_single_setting_can_be_reset(client: TestClient) -> None:
    data = form(client, "?preset=lora") | {RATE: "1", "optimisation.seed": "7"}

    assert changed(drawn(client, f"reset:{RATE}", data)) == ["Seed"]


def test_resetting_adapter_kind_resets_its_settings(client: TestClient) -> None:
    data = form(client, "?preset=full") | {"adapter.kind": "lora", "adapter.r": "4"}

    assert (
        changed(drawn(client, "", data)),
        changed(drawn(client, "reset:adapter.kind", data)),
    ) == (
        ["Adapter", "LoRA rank"],
        [],
    )


def test_resetting_all_settings_keeps_name(client: TestClient) -> None:
    data = form(client) | {RATE: "1", "precision": "fp32", "name": "mine"}
    page = drawn(client, "reset", data)

    assert (changed(page), field_value(page.one(id="form"), "name")) == ([], "mine")


def test_number_of_changed_settings_is_shown(client: TestClient) -> None:
    page = parse_page(client.get("/new?preset=lora&optimisation.seed=7&data.max_length=64").text)

    assert page.one(id="unusual").text == "2 changed"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "Start"),
        ({"name": ""}, "Fix Name to start"),
        ({"base_model": ""}, "Fix Base model to start"),
        ({RATE: "x", "data.max_length": "1"}, "Fix 2 settings to start"),
        ({"dataset": "gone"}, "Fix Dataset to start"),
        ({"preset": "study"}, "Next: choose precisions"),
    ],
)
def test_start_button_names_fields_to_fix(
    client: TestClient, changes: dict[str, str], says: str
) -> None:
    answer = client.post("/new/advice", data=form(client) | changes)

    (start,) = parse_page(answer.text).all("hx-partial", **{"hx-target": "#start"})
    assert start.text == says


def test_pasted_recipe_fills_form(client: TestClient) -> None:
    text = yaml.dump(make_recipe(precision="auto", optimisation={"seed": 7}, **FULL))
    page = drawn(client, "paste", form(client, "?preset=lora") | {"paste": text, "name": "mine"})

    form_ = page.one(id="form")
    shown = [
        field_value(form_, name) for name in ("name", "adapter.kind", "optimisation.seed", "paste")
    ]
    assert (shown, changed(page)) == (["mine", "full", "7", ""], ["Seed", "Adapter"])


def test_invalid_pasted_recipe_keeps_text_and_values(client: TestClient) -> None:
    text = "optimisation: {learning_rate: fast, sped: 2}"
    page = drawn(client, "paste", form(client) | {"paste": text, "name": "mine"})

    form_ = page.one(id="form")
    assert [field_value(form_, name) for name in ("paste", RATE, "name")] == [text, "fast", "mine"]
    assert field_error(page, RATE) == "Must be a number, more than 0 and at most 1."
    assert field_error(page, "paste") == (
        "There is no setting named optimisation.sped. Did you mean seed?"
    )


def test_invalid_yaml_keeps_form(client: TestClient) -> None:
    page = drawn(client, "paste", form(client) | {"paste": "a: b: c", RATE: "0.25"})

    assert field_value(page.one(id="form"), RATE) == "0.25"
    assert field_error(page, "paste").startswith("Invalid YAML at line 1")


def test_copied_experiment_shows_its_parent_and_changes(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "tone", optimisation={"learning_rate": 1e-5})
    client.post("/new", data=form(client, "?from=run:1&optimisation.seed=7"))

    with unit_of_work(engine) as db:
        copy = experiments.get(db, 2)
        assert (copy.name, copy.parent, copy.recipe.optimisation.seed) == ("tone 2", "run:1", 7)
    table = parse_page(client.get("/experiments/2").text).all("table")[-1]
    assert [one.text for one in table.one("tbody").all("tr")] == ["Seed optimisation.seed 42 7"]


def test_deleted_parent_is_reported(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        experiments.create(db, "orphan", make_recipe(), parent="run:9")

    assert (
        "Created from run 9, which was deleted."
        in parse_page(client.get("/experiments/1").text).text
    )


def test_study_preset_opens_precision_study_form(client: TestClient, engine: Engine) -> None:
    answer = client.post("/new", data=form(client, "?preset=study"))

    assert answer.url.path + "?" + answer.url.query.decode() == (
        "/reports/precision/new?from=experiment:1"
    )
    with unit_of_work(engine) as db:
        assert runs.count(db, runs.RunFilter()) == 0


def test_reloading_draft_url_redirects_to_form(client: TestClient) -> None:
    assert client.get("/new/draft").url.path == "/new"


WANTED = {
    "name": 'it\'s "mine"',
    "notes": "two\nlines",
    RATE: "3e-05",
    "optimisation.max_steps": "5",
}


def texts(client: TestClient) -> dict[str, str]:
    """Return the recipe as the form shows it, in each language, and start what the form says."""
    data = form(client, "?preset=lora") | WANTED
    page = client.post("/new/advice", data=data).text
    client.post("/new", data=data)
    return {name: pre_text(page, f"as-{name}") for name in ("yaml", "curl", "python", "openai")}


def pre_text(page: str, id_: str) -> str:
    (pre,) = [one for one in parse_page(page).all("pre") if one.attributes["id"] == id_]
    return "".join(part for part in pre.parts if isinstance(part, str))


def test_yaml_snippet_matches_recipe_of_form(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(texts(client)["yaml"], encoding="utf-8")

    written, started = recipes.load_recipe(file, []), first_run(engine).recipe
    assert written.precision == "auto"
    assert written.model_copy(update={"precision": started.precision}) == started


def test_curl_snippet_starts_same_run_as_form(client: TestClient, engine: Engine) -> None:
    command, _, rest = texts(client)["curl"].partition("<<'JSON'\n")
    body = rest.removesuffix("\nJSON\n")
    assert command.split()[2] == "http://testserver/api/v1/runs"

    same_again(client, engine, json.loads(body))


def test_python_snippet_starts_same_run_as_form(client: TestClient, engine: Engine) -> None:
    # All but the sending, which the browser's tests do on a studio that listens.
    program = texts(client)["python"].partition("with urlopen")[0] + "print(request.data.decode())"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    same_again(client, engine, json.loads(ran.stdout))


def test_openai_snippet_starts_same_run_as_form(client: TestClient, engine: Engine) -> None:
    program = texts(client)["openai"]
    asked = next(
        node.value
        for node in ast.parse(program).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func).endswith("jobs.create")
    )
    sent = {one.arg: ast.literal_eval(one.value) for one in asked.keywords}
    job = {**sent.pop("extra_body"), **sent}

    assert client.post("/v1/fine_tuning/jobs", json=job).status_code == 200
    with unit_of_work(engine) as db:
        assert runs.get(db, 2).recipe == runs.get(db, 1).recipe


def same_again(client: TestClient, engine: Engine, body: Any) -> None:  # noqa: ANN401 -- JSON
    assert client.post("/api/v1/runs", json=body).status_code == 201
    with unit_of_work(engine) as db:
        one, other = runs.get(db, 1), runs.get(db, 2)
        first, second = experiments.get(db, 1), experiments.get(db, 2)
        assert (other.name, other.recipe) == (one.name, one.recipe)
        assert (second.notes, second.parent) == (first.notes, first.parent)
