"""What the form and the API say of a recipe before it starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import read_session
from studio.services.runs import runs
from tests.support.page_reader import field_error, form_fields, parse_page
from tests.unit.weights import safetensors_folders

HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
SMALL = [0.01] * 3 + [1e-4]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(
        safetensors_folders.write(tmp_path / "model", {"a": ("F32", SMALL)}, dtype="float32")
    )


@pytest.fixture
def overflowing(tmp_path: Path) -> str:
    return str(
        safetensors_folders.write(tmp_path / "model", {"a": ("F32", [70000.0])}, dtype="float32")
    )


def planned(client: TestClient, **recipe: Any) -> dict[str, Any]:  # noqa: ANN401 -- any field of a recipe
    answer = client.post("/api/v1/plan", json={"recipe": {"dataset": "starter"} | recipe})
    told: dict[str, Any] = answer.raise_for_status().json()
    return told


def filled(client: TestClient, **changes: str) -> dict[str, str]:
    form = parse_page(client.get("/new?preset=full").text).one(id="form")
    return dict(form_fields(form)) | {
        name.replace("__", "."): value for name, value in changes.items()
    }


ROUNDED = (
    "4 weights stored in float32 are rounded to bfloat16 on loading: of 4 sampled weights, 100 % "
    "change, by 0.11 % on average and 0.14 % at most."
)


def previewed(client: TestClient, **changes: str) -> str:
    """Return the advice and all parts of the page that come along with it."""
    return client.post("/new/advice", data=filled(client, **changes), headers=HTMX).text


def advised(client: TestClient, **changes: str) -> str:
    """Return the advice alone: what comes along finds its own places on the page."""
    return previewed(client, **changes).partition("<hx-partial")[0]


def test_plan_lists_formats_and_sizes(client: TestClient, model: str) -> None:
    plan = planned(client, base_model=model, precision="bf16", adapter={"kind": "full"})["plan"]

    assert plan == {
        "precision": "bf16",
        "weights": "float32",
        "rest": None,
        "trained": "float32",
        "compute": "bfloat16",
        "gradients": "float32",
        "optimizer_states": "float32",
        "scaler": False,
        "parameters": 4,
        "trained_parameters": 4,
        "sizes": {
            "weights": 16,
            "adapter": 0,
            "gradients": 16,
            "optimizer": 32,
            "copies": 0,
            "compensation": 0,
            "total": 64,
        },
        "effective_batch": 8,
        "rounded": None,
    }


def test_plan_of_quantised_model_lists_unquantised_format(client: TestClient, model: str) -> None:
    adapter = {"kind": "lora", "base_dtype": "nf4"}
    plan = planned(client, base_model=model, precision="bf16", adapter=adapter)["plan"]

    assert (plan["weights"], plan["rest"], plan["compute"]) == ("nf4", "bfloat16", "bfloat16")


def test_plan_lists_refusals_with_repairs(client: TestClient, overflowing: str) -> None:
    told = planned(client, base_model=overflowing, precision="fp16", adapter={"kind": "full"})

    assert [(one["param"], one["repair"]) for one in told["refusals"]] == [
        ("precision", {"precision": "bf16"})
    ]


def test_plan_starts_no_run(client: TestClient, engine: Engine, model: str) -> None:
    planned(client, base_model=model)

    with read_session(engine) as db:
        assert runs.newest(db, runs.RunFilter(), limit=1) == []


@pytest.mark.parametrize(
    ("recipe", "param"),
    [
        ({"base_model": "nobody"}, "base_model"),
        ({"base_model": "starter", "precision": "fp7"}, "recipe.precision"),
    ],
)
def test_invalid_plan_is_rejected(client: TestClient, recipe: dict[str, str], param: str) -> None:
    answer = client.post("/api/v1/plan", json={"recipe": {"dataset": "starter"} | recipe})

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


def test_exactly_one_precision_is_recommended(client: TestClient, model: str) -> None:
    modes = client.get("/api/v1/precisions", params={"model": model}).json()["data"]

    assert [mode["recommended"] for mode in modes].count(True) == 1


def test_precisions_include_warnings_for_model(client: TestClient, model: str) -> None:
    modes = client.get("/api/v1/precisions", params={"model": model}).json()["data"]

    warned = {mode["name"]: mode["warnings"] for mode in modes if mode["warnings"]}
    assert list(warned) == ["bf16_dual", "bf16_pure", "bf16_stochastic", "bf16_kahan"]
    assert {text for texts in warned.values() for text in texts} == {ROUNDED}


def test_unavailable_precisions_include_reason_for_model(
    client: TestClient, overflowing: str
) -> None:
    modes = client.get("/api/v1/precisions", params={"model": overflowing}).json()["data"]
    reasons = {mode["name"]: mode["reason"] for mode in modes if mode["available"] is False}

    assert reasons["fp16"] == (
        "1 of 1 sampled weights exceed 65,504, the largest float16 value; the largest is 70,000."
    )


def test_precisions_without_model_have_no_warnings(client: TestClient) -> None:
    modes = client.get("/api/v1/precisions").json()["data"]

    assert [mode["warnings"] for mode in modes if mode["warnings"]] == []


def test_precisions_of_unknown_method_return_404(client: TestClient) -> None:
    assert client.get("/api/v1/precisions?method=magic").status_code == 404


def test_form_shows_recommendation(client: TestClient) -> None:
    page = parse_page(client.get("/new").text)

    assert page.one(id="advice").all("strong")[0].text == "Recommended"


def test_form_warns_about_weights_that_would_not_change(client: TestClient, model: str) -> None:
    said = parse_page(advised(client, base_model=model, precision="bf16_pure")).all(
        class_="caution"
    )

    assert [one.text for one in said] == [
        (
            "75.0 % of weights would not change at a learning rate of 2e-05 in bfloat16 "
            "throughout: choose a higher rate, or a precision that compensates for rounding."
        ),
        ROUNDED,
    ]


def test_rejected_precision_offers_one_repair_button(client: TestClient, overflowing: str) -> None:
    page = parse_page(previewed(client, base_model=overflowing, precision="fp16"))

    (button,) = [one for one in page.all("button") if one.text == "Use bfloat16 mixed"]
    assert json.loads(button.attributes["data-repair"]) == {"precision": "bf16"}


def test_advice_waits_for_valid_fields(client: TestClient) -> None:
    said = parse_page(advised(client, optimisation__learning_rate="x")).text

    assert said == "Recommendations appear once every field is valid."


def test_advice_names_unknown_model(client: TestClient) -> None:
    said = parse_page(advised(client, base_model="startr")).text

    assert said == (
        "There is no model named startr. Did you mean starter? Write a hub model as owner/name, "
        "and a folder as an absolute path."
    )


def test_rejected_plan_is_also_rejected_at_start(client: TestClient, overflowing: str) -> None:
    data = filled(client, base_model=overflowing, precision="fp16")
    answer = client.post("/new", data=data)

    assert (answer.status_code, field_error(parse_page(answer.text), "precision")) == (
        422,
        (
            "1 of 1 sampled weights exceed 65,504, the largest float16 value; the largest is "
            "70,000. Use bfloat16 mixed."
        ),
    )


def test_form_labels_quantised_formats(client: TestClient) -> None:
    choice = parse_page(client.get("/new").text).one(id="adapter-lora-base_dtype")

    assert {one.attributes["value"]: one.text for one in choice.all("option")} == {
        "native": "As saved",
        "float32": "float32",
        "bfloat16": "bfloat16",
        "float16": "float16",
        "int8": "8-bit (LLM.int8)",
        "nf4": "4-bit (NF4)",
    }


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    """Lay out a Llama of 58 million weights."""
    layer = {
        **{f"self_attn.{name}_proj.weight": [512, 512] for name in "qkvo"},
        **{f"mlp.{name}_proj.weight": [1376, 512] for name in ("gate", "up")},
        "mlp.down_proj.weight": [512, 1376],
    }
    tables = {
        name: ("F32", [32000, 512]) for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    layers = {
        f"model.layers.{i}.{name}": ("F32", shape)
        for i in range(8)
        for name, shape in layer.items()
    }
    config = {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
    return str(safetensors_folders.write_empty(tmp_path / "decoder", layers | tables, **config))


def test_plan_estimates_memory_by_part(client: TestClient, decoder: str) -> None:
    asked = {"base_model": decoder, "precision": "fp32", "adapter": {"kind": "full"}}
    answer = client.post("/api/v1/plan", json={"recipe": {"dataset": "starter"} | asked})

    memory = answer.json()["memory"]
    assert memory["parts"]["weights"] == 58_064_896 * 4
    assert memory["total"] == sum(memory["parts"].values())
    assert memory["length"] == 1024


def test_plan_of_unmeasured_model_has_no_memory_estimate(client: TestClient, model: str) -> None:
    answer = client.post(
        "/api/v1/plan", json={"recipe": {"dataset": "starter", "base_model": model}}
    )

    assert answer.json()["memory"] is None


def test_form_shows_memory_estimate(client: TestClient, decoder: str) -> None:
    page = parse_page(advised(client, base_model=decoder, precision="fp32"))

    parts = page.one(class_="memory").all("dt")
    assert sorted(part.text for part in parts) == [
        "Activations",
        "Allocator overhead",
        "Logits and loss",
        "Optimizer",
        "Trainer",
        "Weights",
    ]
