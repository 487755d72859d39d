"""One run's page, and what may be done on it."""

import io
import zipfile
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.methods import METHODS
from studio.protocols.events import Failed, Sampled, Started
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import PRECISIONS
from studio.services.runs import attempts, run_commands, runs
from studio.settings import Settings
from studio.web.i18n import formatting
from studio.web.rendering import live_figures
from studio.web.runs import charts_tab
from tests.support.factories import (
    make_finished_run,
    make_recipe,
    make_run,
    make_running,
    metrics_event,
)
from tests.support.page_reader import Node, parse_page

pytestmark = pytest.mark.smoke


def shown(client: TestClient, run_id: int = 1, tab: str = "") -> Node:
    return parse_page(client.get(f"/runs/{run_id}{tab}").text)


def stored(engine: Engine, run_id: int) -> Run:
    with unit_of_work(engine) as db:
        return runs.get(db, run_id)


def rows(page: Node, label: str) -> list[list[str]]:
    bodies = page.one("div", **{"aria-label": label}).all("tbody")
    found = [row for body in bodies for row in body.all("tr")]
    return [[cell.text for cell in row.parts if isinstance(cell, Node)] for row in found]


def test_queued_run_shows_queue_position(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
        make_run(db)

    assert "number 2 in the queue" in shown(client, 2).one("main").text


def test_running_run_shows_progress(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db), [metrics_event(4, loss=2.5)], 10)

    page = shown(client).one("main")
    assert (page.one("progress").attributes["value"], "step 4 of 10" in page.text) == (
        "0.4000",
        True,
    )


def test_tiles_are_shown_before_first_metric(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        expected = live_figures.tiles(make_run(db), "always")
    tiles = shown(client).one("dl", class_="figures").all("div")

    assert [tile.text for tile in tiles if "hidden" not in tile.attributes][:4] == [
        f"{formatting.metric_title(name)} {formatting.NO_VALUE}" for name in expected
    ]


def test_requested_and_actual_settings_are_compared(client: TestClient, engine: Engine) -> None:
    found = {"compute": "float32", "weights": "float32", "seed": 42, "versions": {"torch": "2.13"}}
    with unit_of_work(engine) as db:
        run = make_running(db, precision="bf16")
        attempts.apply_events(db, run, [Started(total_steps=10, resolved=found)], 10)

    assert rows(shown(client, tab="/details"), "Requested vs. actual settings") == [
        ["Precision"],
        ["Weights", "float32", "float32"],
        ["Results of matrix products", "bfloat16", "float32 (differs)"],
        ["Optimisation"],
        ["Seed", "42", "42"],
        ["Software"],
        ["torch", "", "2.13"],
    ]


def test_packed_run_shows_sequence_count(client: TestClient, engine: Engine) -> None:
    found = {"train_rows": 1470, "train_examples": 384}
    with unit_of_work(engine) as db:
        for packing in (True, False):
            run = make_running(db, data={"packing": packing})
            attempts.apply_events(db, run, [Started(total_steps=10, resolved=found)], 10)

    told = "training rows are packed into 384 sequences."
    assert [told in shown(client, run, "/details").one("main").text for run in (1, 2)] == [
        True,
        False,
    ]


@pytest.mark.parametrize("make", [make_run, make_running], ids=["waits", "begins"])
def test_packed_run_without_counts_is_shown(
    client: TestClient, engine: Engine, make: Callable[..., Run]
) -> None:
    with unit_of_work(engine) as db:
        make(db, data={"packing": True})

    assert "training rows are packed" not in shown(client, tab="/details").one("main").text


def test_sample_answers_are_shown_side_by_side(client: TestClient, engine: Engine) -> None:
    told = [
        Sampled(stage=stage, step=0, position=0, prompt="Q?", reference="R", answer=answer)
        for stage, answer in (("before", "blah"), ("after", "<b>A</b>"))
    ]
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db), told, 10)

    row = (
        shown(client, tab="/answers")
        .one("div", **{"aria-label": "Table of sample answers"})
        .one("tbody")
    )
    assert [one.text for one in row.all(class_="words")] == ["Q?", "Expected R", "blah", "<b>A</b>"]


def test_failure_shows_message_code_and_log(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    folder = RunDir(settings.runs / "1")
    folder.root.mkdir(parents=True)
    folder.log.write_text("almost\nbang\n", encoding="utf-8")
    with unit_of_work(engine) as db:
        why = Failed(code="out_of_memory", message="Memory ran out.", hint="Lower the batch size.")
        attempts.fail(db, make_running(db), why)

    panel = shown(client).one(id="failure")
    assert [panel.one("h2").text, panel.one("code").text, panel.one("pre").text] == [
        "Memory ran out.",
        "out_of_memory",
        "almost bang",
    ]


def test_files_can_be_downloaded(client: TestClient, engine: Engine, settings: Settings) -> None:
    folder = RunDir(settings.runs / "1").artifacts / "nested"
    folder.mkdir(parents=True)
    (folder / "model card.md").write_text("hello", encoding="utf-8")
    with unit_of_work(engine) as db:
        make_finished_run(db)

    link = (
        shown(client, tab="/files")
        .one("section", **{"aria-labelledby": "files-title"})
        .one("a", download="")
    )
    assert (link.text, client.get(link.attributes["href"]).text) == (
        "nested/model card.md",
        "hello",
    )


def test_charts_without_data_are_hidden(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(
            db, make_running(db), [metrics_event(1, loss=2.0, loss_scale=65536.0)], 10
        )

    charts = shown(client, tab="/charts").all("section", class_="chart")
    hidden = [chart.one("h3").text for chart in charts if "hidden" in chart.attributes]
    assert hidden == [
        "Token accuracy",
        "Seconds per step",
        "Peak memory",
        "Gradients rounded to zero",
        "Relative update size",
        "Updates lost to rounding",
        "Max activation",
        "Max logit",
        "Skipped steps",
    ]


@pytest.mark.parametrize(
    ("method", "chart", "note"),
    [
        ("dpo", "Log-probability of the answers", "Both may fall: watch the margin."),
        ("dpo", "Reward margin", "It should rise."),
        ("kto", "Divergence from the start", "If it keeps rising, lower the learning rate"),
        ("reward", "Score of the answers", "Only the distance between the two counts"),
        ("classify", "Accuracy", "Macro F1 counts every label equally"),
    ],
)
def test_chart_knows_what_to_look_for(method: str, chart: str, note: str) -> None:
    plots = charts_tab.list_plots(
        Run(experiment_id=1, name="first try", recipe=make_recipe(method=method)), []
    )

    assert note in next(plot.note for plot in plots if plot.title == chart)


def test_chart_says_what_to_look_for(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db, method="classify")

    charts = shown(client, tab="/charts").all("section", class_="chart")
    accuracy = next(one for one in charts if one.one("h3").text == "Accuracy")
    assert accuracy.one("p", class_="help").text.startswith("Accuracy counts rows.")


@pytest.mark.parametrize("method", METHODS)
def test_charts_explain_every_objective_that_is_no_loss(method: str) -> None:
    objective = METHODS[method].objective
    beside = [spec.note for spec in METHODS[method].metrics.own if spec.chart == objective.chart]

    assert any(beside) or objective.chart == "Loss"


def test_unknown_metric_gets_chart(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db), [metrics_event(1, margin=2.0)], 10)

    keys = [
        plot.attributes["data-keys"]
        for plot in shown(client, tab="/charts").all("div", class_="plot")
    ]
    assert keys[-1] == "margin"


def test_run_can_be_stopped(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    answer = client.post("/runs/1/cancel")
    assert (answer.url.path, stored(engine, 1).status) == ("/runs/1", "stopping")


def test_finished_run_cannot_be_stopped(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)

    answer = client.post("/runs/1/cancel")
    assert (answer.status_code, parse_page(answer.text).one(class_="problem").text) == (
        409,
        "Run 1 is already succeeded.",
    )


def test_run_can_be_repeated(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "tone", optimisation={"seed": 7})

    answer = client.post("/runs/1/again")
    first, second = stored(engine, 1), stored(engine, 2)
    assert (answer.url.path, second.recipe, second.experiment_id) == (
        "/runs/2",
        first.recipe,
        first.experiment_id,
    )


def test_run_can_be_repeated_in_another_precision(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, precision="bf16")

    client.post("/runs/1/again", data={"precision": "fp32"})
    assert stored(engine, 2).recipe.precision == "fp32"


def test_unknown_precision_is_rejected(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)

    assert client.post("/runs/1/again", data={"precision": "fp3"}).status_code == 422


def test_every_other_precision_is_offered(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, precision="fp16")

    radios = shown(client).one(id="other-precision").all("input", type="radio")
    assert [radio.attributes["value"] for radio in radios] == [
        name for name in PRECISIONS if name != "fp16"
    ]


def test_run_can_be_renamed(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)

    client.post("/runs/1/words", data={"name": "  better name "})
    assert stored(engine, 1).name == "better name"


def test_run_can_be_deleted(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)

    answer = client.post("/runs/1/delete")
    assert (answer.url.path, client.get("/runs/1").status_code) == ("/", 404)


def test_missing_run_shows_message(client: TestClient) -> None:
    answer = client.get("/runs/9")

    assert (answer.status_code, parse_page(answer.text).one("strong").text) == (
        404,
        "Run 9 does not exist.",
    )


def test_tags_and_notes_can_be_edited(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    form = shown(client).one("form", id="writing")
    sent = {one.attributes["name"]: one.attributes["value"] for one in form.all("input")}
    notes = "It learns.\r\nSlowly."
    client.post(form.attributes["action"], data=sent | {"tags": "good", "notes": notes})
    page = shown(client)

    assert page.one("a", class_="chip").text == "good"
    assert page.one("textarea", id="words-notes").text == "It learns. Slowly."


def answered(*stages: tuple[str, int, str]) -> list[Sampled]:
    return [
        Sampled(stage=stage, step=step, position=0, prompt="Q?", reference="A b.", answer=answer)
        for stage, step, answer in stages
    ]


def test_finished_run_shows_verdict_pairs_and_improvements(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
        told = answered(("before", 0, "x"), ("after", 10, "A b."))
        losses = [metrics_event(step, eval_loss=4 - step / 10) for step in (0, 11, 12)]
        attempts.apply_events(db, run, [*told, *losses], 2000)

    card = shown(client).one("section", **{"aria-labelledby": "result-title"})
    assert card.one("h2").text == "It learned it: 0 of 1 → 1 of 1 right"
    assert [cell.text for cell in card.one("tbody").all("td")] == ["✗ wrong x", "✓ right A b."]
    addresses = [link.attributes["href"] for link in card.one("ul", class_="improve").all("a")]
    assert addresses[0].startswith("/new?from=run:1&optimisation.num_train_epochs=")
    assert addresses[-1] == "/sweeps/new?from=run:1"
    assert client.get(addresses[0]).status_code == client.get(addresses[-1]).status_code == 200


def test_unfinished_and_failed_runs_claim_nothing(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)
        attempts.fail(db, make_running(db), Failed(code="out_of_memory", message="Full.", hint=""))

    assert [shown(client, run).all(id="result-title") for run in (1, 2)] == [[], []]


def test_stopped_run_says_what_happened_to_its_model(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_commands.cancel(db, make_run(db).id or 0)

    title = shown(client).one("h2", id="stopped-title").text
    assert title == "Cancelled before its first step"


def test_answers_can_be_followed_and_looked_up_by_step(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        told = answered(("before", 0, "x"), ("during", 5, "A c."), ("during", 8, "A b."))
        attempts.apply_events(db, make_running(db), told, 10)

    def section(query: str) -> Node:
        return parse_page(client.get(f"/runs/1/parts/answers{query}").text).one(id="live-answers")

    newest = section("")
    assert (newest.one(class_="answered").text, newest.one("output").text) == (
        "✓ right A b.",
        "Step 8",
    )
    assert section("?at=1&of=3").one(class_="answered").text == "✗ wrong A c."
    # The viewer saw the newest of two answers when a third arrived.
    assert section("?at=1&of=2").one("output").text == "Step 8"
    assert section("?at=-3&of=9").one("output").text == "Before training"


def test_tile_marks_best_value(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        told = [metrics_event(step, loss=loss) for step, loss in ((1, 3.0), (2, 1.5), (3, 2.0))]
        attempts.apply_events(db, make_running(db), told, 10)

    tile = shown(client).one("dd", **{"data-course": "loss"})
    assert tile.text == "★ best 1.5 at step 2"
    assert tile.attributes["data-values"] == "3.0,1.5,2.0"


def test_model_is_downloaded_by_one_press(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    folder = RunDir(settings.runs / "1").artifacts
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    with unit_of_work(engine) as db:
        make_finished_run(db, "Tone of voice")

    link = next(one for one in shown(client).one(id="head").all("a") if one.text == "Download")
    answer = client.get(link.attributes["href"])
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == ["tone-of-voice-1/model.safetensors"]


def test_run_without_model_cannot_be_downloaded(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    answer = client.get("/api/v1/runs/1/zip")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        409,
        "Run 1 has no model yet.",
    )


def test_run_links_to_the_runs_before_and_after_it(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, adapter={"kind": "lora"})
        make_finished_run(db, adapter={"kind": "lora", "continue_from": "run-1"})
        make_run(db, adapter={"kind": "lora", "continue_from": "run-2"})

    texts = [shown(client, number).one("header", id="head").text for number in (1, 2, 3)]
    assert "Continues" not in texts[0]
    assert "Continued by #2" in texts[0]
    assert "Continues #1 Continued by #3" in " ".join(texts[1].split())
    assert "Continues #2 ← #1" in " ".join(texts[2].split())


def test_finished_run_offers_to_continue(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, adapter={"kind": "lora"})
        make_running(db)
    link = shown(client).one("li", id="do-continue").one("a")
    form = parse_page(client.get(link.attributes["href"]).text)

    assert form.one("input", id="adapter-lora-continue_from").attributes["value"] == "run-1"
    assert "continues run-1" in form.text
    assert shown(client, 2).all("li", id="do-continue") == []


def test_run_that_writes_no_text_has_no_answers(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db).recipe = make_recipe(method="reward")
        make_finished_run(db)

    tabs = [
        [tab.text for tab in shown(client, number).one("nav", class_="tabs").all("a")]
        for number in (1, 2)
    ]
    assert ["Answers" in names for names in tabs] == [False, True]
