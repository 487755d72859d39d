"""A model that no method can train is refused wherever it is chosen, and named for what it is."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.services.models import models
from studio.weights.architectures import (
    CAUSAL_METHOD_HINT,
    CAUSAL_MODEL_HINT,
    ENCODER_METHOD_HINT,
    KIND_DESCRIPTIONS,
)
from tests.support.page_reader import parse_page
from tests.unit.weights import safetensors_folders
from tests.web.experiments.test_plans import advised, planned
from tests.web.openai.test_jobs import ask

CONFIGS: dict[str, dict[str, Any]] = {
    "encoder": {"model_type": "fnet", "architectures": ["FNetForMaskedLM"]},
    "classifier": {"model_type": "granite", "architectures": ["GraniteForTokenClassification"]},
    "multimodal": {"model_type": "idefics3"},
    "audio": {"model_type": "whisper", "is_encoder_decoder": True},
    "vision": {"model_type": "vit"},
}


@pytest.fixture(params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> str:
    return str(
        safetensors_folders.write(tmp_path / "other", {"a": ("BF16", [0.5] * 4)}, **CONFIGS[kind])
    )


def test_untrainable_model_cannot_be_added(client: TestClient, kind: str, folder: str) -> None:
    answer = client.post("/api/v1/models", json={"source": {"kind": "folder", "path": folder}})

    told = answer.json()
    assert answer.status_code == 422, told
    assert KIND_DESCRIPTIONS[kind] in str(told)  # type: ignore[index] # the fixture gives kinds alone
    assert CAUSAL_MODEL_HINT in str(told)
    page = client.post("/models/folder", data={"folder": folder})
    assert page.status_code == 422
    assert KIND_DESCRIPTIONS[kind] in parse_page(page.text).text  # type: ignore[index] # the same


def test_plan_rejects_untrainable_model_without_blaming_precision(
    client: TestClient, kind: str, folder: str
) -> None:
    (refusal,) = planned(client, base_model=folder, precision="fp16")["refusals"]

    assert refusal["message"].startswith(KIND_DESCRIPTIONS[kind])  # type: ignore[index] # the same
    hint = ENCODER_METHOD_HINT if kind in {"encoder", "classifier"} else CAUSAL_MODEL_HINT
    assert (refusal["hint"], refusal["param"], refusal["repair"]) == (hint, "base_model", {})
    assert KIND_DESCRIPTIONS[kind] in advised(client, base_model=folder)  # type: ignore[index] # the same


def test_run_of_untrainable_model_is_rejected(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    """Also where it came among the models before it would have been refused there."""
    other = safetensors_folders.write(
        tmp_path / "t5", {"a": ("F32", [0.5] * 4)}, model_type="t5", is_encoder_decoder=True
    )
    with unit_of_work(engine) as db:
        models.add(db, "my t5", str(other), kind="folder")

    refusal, *_others = planned(client, base_model="my t5")["refusals"]
    assert refusal["hint"] == CAUSAL_METHOD_HINT

    recipe = {"base_model": "my t5", "dataset": "starter"}
    answer = client.post("/api/v1/runs", json={"name": "t5", "recipe": recipe})
    assert answer.status_code == 422
    assert KIND_DESCRIPTIONS["encoder_decoder"] in str(answer.json())

    job = ask(client, model="my t5")
    assert job.status_code in {400, 422}, job.json()
    assert KIND_DESCRIPTIONS["encoder_decoder"] in job.json()["error"]["message"]


def test_encoder_decoder_is_trained_by_its_own_method(client: TestClient, tmp_path: Path) -> None:
    """Other models are refused there, and families that no test trains."""
    weights = {"a": ("F32", [0.5] * 4)}
    known = safetensors_folders.write(tmp_path / "t5", weights, model_type="t5")
    other = safetensors_folders.write(tmp_path / "led", weights, model_type="led")

    def refusals(model: str) -> list[str]:
        plan = planned(client, method="seq2seq", base_model=model)
        return [refusal["message"] for refusal in plan["refusals"]]

    assert not [message for message in refusals(str(known)) if "cannot train" in message]
    assert "Sequence to sequence cannot train led models" in refusals(str(other))[0]
    assert refusals("starter")[0].startswith(KIND_DESCRIPTIONS["causal"])


def test_encoder_learns_labels_and_numbers(client: TestClient, tmp_path: Path) -> None:
    """It can be added, needs no chat template, and is refused where a model writes."""
    folder = safetensors_folders.write(
        tmp_path / "bert", {"a": ("F32", [0.5] * 4)}, model_type="bert", max_position_embeddings=512
    )
    source = {"kind": "folder", "path": str(folder)}
    assert client.post("/api/v1/models", json={"name": "my bert", "source": source}).is_success

    def refusals(method: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = planned(client, method=method, base_model="my bert")[
            "refusals"
        ]
        return found

    for method in ("classify", "regress"):
        assert not [one for one in refusals(method) if one["param"] != "dataset"]
    assert refusals("sft")[0]["hint"] == ENCODER_METHOD_HINT
    assert "Reward model cannot train bert models" in refusals("reward")[0]["message"]


def test_refusal_is_in_the_language_of_the_page(client: TestClient, folder: str) -> None:
    client.cookies.set("language", "zh-Hans")
    page = client.post("/models/folder", data={"folder": folder})

    assert "请选择因果语言模型" in page.text
    assert "This is a" not in parse_page(page.text).text
