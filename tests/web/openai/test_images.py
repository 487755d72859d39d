"""Images in questions, in OpenAI's shapes: what reaches the model, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from sqlalchemy import Engine
from tokenizers import Tokenizer

from studio.db.session import unit_of_work
from studio.db.tables import Model
from studio.services.models import models
from studio.settings import Settings
from tests.support import tokenizer_services
from tests.support.inference_services import FakeInferenceService, run_inference_service, words
from tests.unit.services.chat.test_sent_images import PNG, data_url, encode
from tests.web.openai import test_answers
from tests.web.openai.test_answers import ask

home, _tokenizer = test_answers.home, test_answers._tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
"""It renders parts only, as that of LLaVA."""
TOKENS = 16
"""What an image of any size becomes."""
WIDE = encode(Image.new("RGB", (64, 16)))


def write_llava(folder: Path) -> Path:
    """Write the tokenizer and the configs of a model that reads images; there are no weights."""
    tokenizer_services.write_model(folder, TEMPLATE)
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens(["<image>"])
    inner.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llava",
        "image_token_id": inner.token_to_id("<image>"),
        "text_config": {"model_type": "llama", "vocab_size": 259},
        "vision_config": {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8},
    }
    sizes = {"crop_size": {"height": 32, "width": 32}, "size": {"shortest_edge": 32}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    kind = {"image_processor_type": "CLIPImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(kind | sizes), encoding="utf-8")
    return folder


@pytest.fixture
def service(settings: Settings) -> Iterator[FakeInferenceService]:
    with run_inference_service(settings, lambda _request: words("Red.")) as running:
        yield running


@pytest.fixture
def seeing(engine: Engine, tmp_path: Path, _tokenizer: None) -> None:
    """Let the model of the studio read images."""
    folder = write_llava(tmp_path / "llava")
    with unit_of_work(engine) as db:
        model = models.find_by_name(db, "starter")
        assert isinstance(model, Model)
        model.location = str(folder)


def image(content: bytes = PNG, **more: Any) -> dict[str, Any]:  # noqa: ANN401 -- any JSON
    return {"type": "image_url", "image_url": {"url": data_url(content), **more}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def error(refused: httpx2.Response) -> dict[str, Any]:
    told: dict[str, Any] = refused.json()["error"]
    return told


def asking(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"model": "starter", "messages": [{"role": role, "content": list(parts)}]}


@pytest.mark.usefixtures("seeing")
def test_images_stand_where_they_were_put(
    client: TestClient, service: FakeInferenceService
) -> None:
    parts = [text("ab"), image(), text("c"), image(WIDE, detail="low")]
    answer = ask(client, "chat/completions", asking(*parts))

    (request,) = service.requests
    mark = 258
    assert request.images == [PNG, WIDE]
    assert [place for place, token in enumerate(request.ids) if token == mark] == [
        *range(3, 3 + TOKENS),
        *range(4 + TOKENS, 4 + 2 * TOKENS),
    ]
    assert answer["usage"]["prompt_tokens"] == len(request.ids) == 3 + 2 * TOKENS + 3
    assert answer["choices"][0]["message"]["content"] == "Red."


@pytest.mark.usefixtures("seeing")
def test_model_that_sees_answers_without_images(
    client: TestClient, service: FakeInferenceService
) -> None:
    body = {"model": "starter", "messages": [{"role": "user", "content": "Hello"}]}
    ask(client, "chat/completions", body)

    assert service.requests[0].images == []
    assert len(service.requests[0].ids) == len("Hello") + 3


@pytest.mark.usefixtures("service", "seeing")
def test_images_of_earlier_messages_count(client: TestClient, settings: Settings) -> None:
    turns = [
        {"role": "user", "content": [image()]},
        {"role": "assistant", "content": "Red."},
    ]
    messages = [*turns * settings.images_per_question, {"role": "user", "content": [image()]}]
    refused = client.post("/v1/chat/completions", json={"model": "starter", "messages": messages})

    assert refused.status_code == 400
    assert "21 images, and at most 20" in error(refused)["message"]


@pytest.mark.usefixtures("service")
def test_model_of_text_refuses_images(client: TestClient) -> None:
    refused = client.post("/v1/chat/completions", json=asking(text("What?"), image()))

    assert refused.status_code == 400
    assert error(refused)["param"] == "messages"
    assert "starter reads text only" in error(refused)["message"]


@pytest.mark.usefixtures("service", "seeing")
@pytest.mark.parametrize(
    ("parts", "param", "reason"),
    [
        pytest.param([image(b"no")], "messages.0.content.0.image_url", "is none", id="no file"),
        pytest.param([text("<image>")], None, "place of an image", id="a mark in a text"),
        pytest.param([text("<image>"), image()], None, "place of an image", id="both"),
        pytest.param(
            [text("a"), {"type": "image_url", "image_url": {"url": "http://10.0.0.1/a.png"}}],
            "messages.0.content.1.image_url",
            "internal address",
            id="internal",
        ),
    ],
)
def test_what_is_wrong_is_said(
    client: TestClient, parts: list[dict[str, Any]], param: str | None, reason: str
) -> None:
    refused = client.post("/v1/chat/completions", json=asking(*parts))

    assert refused.status_code == 400
    assert reason in error(refused)["message"]
    assert error(refused)["param"] == param


@pytest.mark.usefixtures("service", "seeing")
@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_users_send_images(client: TestClient, role: str) -> None:
    refused = client.post("/v1/chat/completions", json=asking(image(), role=role))

    assert refused.status_code == 400
    assert error(refused)["param"] == "messages.0.content.0.image_url"


@pytest.mark.usefixtures("service", "seeing")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": {"url": data_url(PNG), "detail": "fine"}},
        {"type": "input_audio", "input_audio": {"data": "QQ", "format": "wav"}},
        {"image_url": {"url": data_url(PNG)}},
    ],
)
def test_malformed_parts_are_refused(client: TestClient, part: dict[str, Any]) -> None:
    refused = client.post("/v1/chat/completions", json=asking(part))

    assert refused.status_code == 400
    assert error(refused)["message"]


@pytest.mark.usefixtures("service", "seeing")
def test_body_may_be_as_large_as_its_images(client: TestClient, settings: Settings) -> None:
    large = encode(Image.effect_noise((1600, 1600), 90), "PNG")
    assert 2**20 < len(large) < settings.image_bytes_per_question / 5

    ask(client, "chat/completions", asking(*[image(large)] * 4))
    refused = client.post("/v1/chat/completions", json=asking(*[image(large)] * 15))
    assert refused.status_code == 413
    assert error(refused)["message"]
