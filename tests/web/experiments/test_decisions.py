"""The three decisions of an experiment, data, model and goal, and the line that sums them up."""

import io
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.methods import RECIPE_ADAPTER
from studio.services.datasets import datasets
from studio.services.estimates import estimates, model_catalogue
from studio.services.models import models
from studio.settings import Settings
from studio.web.app import create_app
from tests.fakes.hub_server import HubServer
from tests.support.factories import connect_worker
from tests.support.page_reader import Node, field_error, field_value, form_fields, parse_page
from tests.unit.weights import safetensors_folders

HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}


def page_at(client: TestClient, query: str = "") -> Node:
    return parse_page(client.get(f"/new{query}").text)


def filled(client: TestClient, query: str = "") -> dict[str, str]:
    return dict(form_fields(page_at(client, query).one(id="form")))


def partial(page: Node, target: str) -> Node:
    return page.one("hx-partial", **{"hx-target": target})


def add_rows(client: TestClient, name: str, content: str) -> int:
    files = {"file": (name, io.BytesIO(content.encode()), "text/plain")}
    answer = client.post("/api/v1/datasets", files=files, data={"draft": "true"})
    return int(answer.json()["id"])


@pytest.fixture
def decoder(engine: Engine, tmp_path: Path) -> str:
    """List a Llama of a million weights, and return its name."""
    layer = {
        **{f"self_attn.{name}_proj.weight": [128, 128] for name in "qkvo"},
        **{f"mlp.{name}_proj.weight": [256, 128] for name in ("gate", "up")},
        "mlp.down_proj.weight": [128, 256],
        "input_layernorm.weight": [128],
        "post_attention_layernorm.weight": [128],
    }
    tables = {
        name: ("F32", [2000, 128]) for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    layers = {
        f"model.layers.{i}.{name}": ("F32", shape)
        for i in range(4)
        for name, shape in layer.items()
    }
    config = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 2000,
    }
    tensors = layers | tables | {"model.norm.weight": ("F32", [128])}
    folder = safetensors_folders.write_empty(tmp_path / "decoder", tensors, **config)
    with unit_of_work(engine) as db:
        return models.add_folder(db, str(folder)).name


def test_data_card_shows_rows_and_marks_sample_data(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        datasets.get(db, 1).source = "starter"
    facts = page_at(client).one(id="dataset-facts")

    assert facts.text.startswith("40 rows sample data Conversations")
    assert facts.one("a").attributes["href"] == "/datasets/1"


def test_model_card_shows_size_family_and_fit(client: TestClient, decoder: str) -> None:
    facts = page_at(client, f"?preset=lora&base_model={decoder}").one(id="base_model-facts").text

    assert facts.replace("\xa0", " ").startswith("1.17 M parameters llama on disk ✓ Fits")


def test_known_hub_model_shows_size_and_fit_before_download(client: TestClient) -> None:
    query = "?preset=lora&base_model=HuggingFaceTB/SmolLM2-135M-Instruct"
    facts = page_at(client, query).one(id="base_model-facts").text.replace("\xa0", " ")

    assert "135 M parameters llama 269 MB to download" in facts
    assert "✓ Fits" in facts


def test_tuned_line_names_adapter_batch_and_epochs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        connect_worker(db, "plain")
    line = page_at(client, "?preset=lora").one(class_="tuned-line")

    assert line.text.startswith("Tuned for this machine: float32 · LoRA 16 · batch 8 · 3 epochs")
    reason = line.all("span")[0].attributes["title"]
    assert reason == "float32: Old CPU, 2 cores is fast in neither bfloat16 nor float16."


def test_tuned_line_follows_changes(client: TestClient) -> None:
    changes = {
        "precision": "fp32",
        "adapter.kind": "full",
        "optimisation.max_steps": "60",
        "optimisation.gradient_accumulation_steps": "4",
    }
    answer = client.post("/new/advice", data=filled(client, "?preset=lora") | changes, headers=HTMX)

    line = partial(parse_page(answer.text), "#tuned").text
    assert line.startswith(
        "As set: float32 · all weights · batch 8 \N{MULTIPLICATION SIGN} 4 · 60 steps"
    )


def test_problems_stand_in_their_cards_and_above_start(client: TestClient) -> None:
    page = page_at(client, "?base_model=startr&dataset=gone&optimisation.weight_decay=4")

    assert field_error(page, "dataset").startswith("There is no dataset named gone.")
    assert field_error(page, "base_model").startswith("There is no model named startr.")
    links = [one.text for one in page.one(id="lacking").all("a")]
    assert links == ["Base model", "Dataset", "Weight decay"]
    assert page.one(id="start").text == "Fix 3 settings to start"


@pytest.mark.parametrize(
    ("changes", "is_open"),
    [({}, False), ({"name": ""}, False), ({"optimisation.weight_decay": "4"}, True)],
)
def test_settings_open_only_if_one_of_them_is_wrong(
    client: TestClient, changes: dict[str, str], *, is_open: bool
) -> None:
    data = filled(client) | {"base_model": "startr"} | changes
    fold = parse_page(client.post("/new", data=data).text).one(id="all-settings")

    assert ("open" in fold.attributes) is is_open


def test_model_can_be_chosen_without_script(client: TestClient) -> None:
    data = filled(client) | {"name": "mine", "do": "choose:base_model=Qwen/Qwen3-0.6B"}
    form = parse_page(client.post("/new/draft", data=data).text).one(id="form")

    assert field_value(form, "base_model") == "Qwen/Qwen3-0.6B"
    assert field_value(form, "name") == "mine"


def offers(client: TestClient, **changes: str) -> dict[str, str]:
    """Return what the model chooser says of each model."""
    data = filled(client, "?preset=lora") | changes
    page = parse_page(client.post("/new/models", data=data, headers=HTMX).text)
    return {one.one("strong").text: one.text for one in page.all("button")}


def test_models_fit_or_do_not_with_the_recipe(client: TestClient) -> None:
    small, large = offers(client), offers(client, **{"adapter.kind": "full"})

    name = "Qwen/Qwen3-8B"
    assert "✓ Fits" in small["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert "8.19 B qwen3 16.4 GB to download" in small[name].replace("\xa0", " ")
    assert "Does not fit" in large[name]


def test_invalid_recipe_leaves_fit_unknown(client: TestClient) -> None:
    texts = offers(client, **{"optimisation.weight_decay": "4"})

    assert all("Unknown" in text for text in texts.values())


def test_listed_hub_model_is_not_offered_twice(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        models.add(db, "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", kind="hub")
    names = list(offers(client))

    assert names.count("Qwen/Qwen3-0.6B") == 1
    assert names[0] == "Qwen/Qwen3-0.6B"


def test_catalogue_agrees_with_the_estimate_of_the_recipe(engine: Engine, decoder: str) -> None:
    values = {"base_model": decoder, "dataset": "starter", "precision": "fp32"}
    recipe = RECIPE_ADAPTER.validate_python(values)
    with read_session(engine) as db:
        entry = model_catalogue.list_entries(db, recipe)[0]
        exact = estimates.estimate_recipe(db, recipe).memory

    assert entry.name == decoder
    assert entry.memory is not None
    assert exact is not None
    assert entry.memory.total == exact.total


def test_mapping_leads_back_to_the_form(client: TestClient) -> None:
    rows = "foo,bar\n" + "".join(f"Say number {i},It is {i}.\n" for i in range(40))
    number = add_rows(client, "odd.csv", rows)
    then = "/new?method=sft&preset=lora&name=mine&optimisation.seed=7"
    page = parse_page(client.get(f"/datasets/{number}/mapping", params={"then": then}).text)
    data = dict(form_fields(page.one(id="form"))) | {"use": "1"}
    answer = client.post(f"/datasets/{number}/mapping", data=data)

    assert answer.url.path == "/new"
    form = parse_page(answer.text).one(id="form")
    kept = [field_value(form, name) for name in ("dataset", "name", "optimisation.seed")]
    assert kept == ["odd", "mine", "7"]


@pytest.mark.parametrize("then", ["https://elsewhere.example/new", "//elsewhere/new", "/runs"])
def test_mapping_leads_nowhere_else(client: TestClient, then: str) -> None:
    number = add_rows(client, "own.csv", "instruction,output\nSay 1,1.\nSay 2,2.\n")
    page = client.get(f"/datasets/{number}/mapping", params={"then": then}).text

    assert "then" not in dict(form_fields(parse_page(page).one(id="form")))


def test_dataset_that_does_not_fit_offers_another_goal(client: TestClient) -> None:
    facts = page_at(client, "?method=cpt&dataset=starter").one(id="dataset-facts")

    (button,) = facts.all("button")
    assert button.text == "Switch to: Learn from answers"
    assert button.attributes["value"] == "method:sft"


@pytest.mark.parametrize(
    ("name", "content", "method", "goal"),
    [
        ("things", "text,label\n" + "an apple,fruit\na saw,tool\n" * 3, "classify", "Learn labels"),
        ("stars", "text,score\n" + "so good,4.5\nso bad,1.5\n" * 3, "regress", "Learn numbers"),
    ],
)
def test_file_is_first_of_all_for_what_its_answers_are(
    name: str, content: str, method: str, goal: str, client: TestClient
) -> None:
    files = {"file": (f"{name}.csv", io.BytesIO(content.encode()), "text/csv")}
    number = client.post("/api/v1/datasets", files=files).json()["id"]

    offered = page_at(client, f"?method=sft&dataset={name}").one(id="goal-fit")
    assert [button.text for button in offered.all("button")] == [goal]
    assert (
        field_value(page_at(client, f"?from=dataset:{number}").one(id="form"), "method") == method
    )
    uses = parse_page(client.get(f"/datasets/{number}").text)
    assert uses.text.index(goal) < uses.text.index("Learn from answers")


def test_no_goal_is_offered_that_refuses_the_model(client: TestClient, tmp_path: Path) -> None:
    weights = {"a": ("F32", [0.5] * 4)}
    folder = safetensors_folders.write(tmp_path / "t5", weights, model_type="t5")
    query = "?method=seq2seq&dataset=starter&base_model="

    assert "Made for this data" in page_at(client, f"{query}starter").text
    assert "Made for this data" not in page_at(client, f"{query}{folder}").text


def test_quick_start_of_another_model_offers_its_preset(client: TestClient, tmp_path: Path) -> None:
    """The starter model learns at rates that spoil others."""
    weights = {"a": ("F32", [0.5] * 4)}
    folder = safetensors_folders.write(tmp_path / "llama", weights, model_type="llama")
    sent = filled(client, "?method=sft&preset=quick")
    before = parse_page(client.post("/new/advice", data=sent).text)
    after = parse_page(client.post("/new/advice", data=sent | {"base_model": str(folder)}).text)
    chosen = sent | {"base_model": str(folder), "do": "preset:lora"}
    page = parse_page(client.post("/new/draft", data=chosen).text)

    assert partial(before, "#goal-fit").all("button") == []
    assert [one.text for one in partial(after, "#goal-fit").all("button")] == ["Balanced LoRA"]
    assert field_value(page.one(id="form"), "base_model") == str(folder)
    assert float(field_value(page.one(id="form"), "optimisation.learning_rate")) <= 2e-4
    assert page.one(id="goal-fit").all("button") == []


def test_other_goal_keeps_the_preset(client: TestClient) -> None:
    files = {"file": ("things.csv", io.BytesIO(b"text,label\n" + b"a,b\nc,d\n" * 9), "text/csv")}
    client.post("/api/v1/datasets", files=files)
    sent = filled(client, "?method=sft&preset=quick&dataset=things")
    page = parse_page(client.post("/new/draft", data=sent | {"do": "method:classify"}).text)

    assert field_value(page.one(id="form"), "preset") == "quick"


def test_short_words_do_not_ask_the_hub(client: TestClient) -> None:
    page = parse_page(client.get("/new/hub?q=q", headers=HTMX).text)

    assert page.text == "Enter at least two letters."


def test_hub_results_can_be_chosen(engine: Engine, settings: Settings, hub: HubServer) -> None:
    hub.model("mantissa/small", {"config.json": b"{}", "model.safetensors": b"x"})
    hub.model("mantissa/pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    online = settings.model_copy(update={"hub_endpoint": hub.url})
    client = TestClient(create_app(engine, online))
    page = parse_page(client.get("/new/hub?q=mantissa", headers=HTMX).text)

    buttons = [one.attributes["value"] for one in page.all("button")]
    assert buttons == ["choose:base_model=mantissa/small"]
    assert "mantissa/pickled" in page.one(class_="unusable").text
