"""Answers about images: those of plain transformers, alone, beside others, and by adapters."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from peft import LoraConfig, get_peft_model
from PIL import Image, ImageOps
from sqlalchemy import Engine
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from studio.db.column_types import now
from studio.db.session import unit_of_work
from studio.db.tables import Model, Worker
from studio.errors import InvalidError
from studio.protocols import tokenizer_service
from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.services.models import service_clients
from studio.services.operations.home import open_home
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.app import create_app
from studio.worker.socket_services import InferenceService, SocketService
from tests.support.vision_models import VISION_FAMILIES, VisionFamily, write_vision_model
from tests.unit.services.chat.test_sent_images import data_url, encode
from tests.worker.ticking import ticking

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

MOST = 12
ADAPTERS: dict[str, Sequence[str]] = {
    "language": ["q_proj", "v_proj", "up_proj"],
    "everything": "all-linear",
}
SIZES = ((32, 32), (48, 40), (100, 64))


def noise(number: int) -> Image.Image:
    """Return an image that is unlike others."""
    return Image.effect_noise(SIZES[number % 3], 40 + 20 * number).convert("RGB")


IMAGES = [noise(number) for number in range(4)]


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    images: Sequence[Image.Image] = ()


QUESTIONS = (
    Question("What is it?", IMAGES[:1]),
    Question("How are you?"),
    Question("Compare these two.", IMAGES[1:3]),
    Question("?", IMAGES[3:]),
)


@dataclass(slots=True)
class Studio:
    settings: Settings
    root: Path
    inference: InferenceService
    tokenizer: SocketService
    client: TestClient
    known: dict[str, Any] = field(default_factory=dict)

    def tick(self) -> None:
        self.inference.tick(lambda: 1, lambda: None, lambda: None)
        self.tokenizer.tick()

    def ask(self, family: str, question: Question, **more: Any) -> str:  # noqa: ANN401 -- any field
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": data_url(encode(one))}}
            for one in question.images
        ]
        content = [*parts, {"type": "text", "text": question.text}]
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
        answer = self.client.post(
            "/v1/chat/completions", json=body | {"model": family, "max_tokens": MOST} | more
        )
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def request(self, family: str, question: Question, adapter: str = "") -> GenerationRequest:
        ids = plain_inputs(self.root / family, question)["input_ids"][0].tolist()
        folder = str(self.root / f"{family}-{adapter}") if adapter else ""
        return GenerationRequest(
            model=str(self.root / family),
            adapter=folder,
            ids=ids,
            images=[encode(one) for one in question.images],
            stops=[2],
            most=MOST,
            temperature=0,
        )

    async def hear(self, request: GenerationRequest) -> str:
        stream = await service_clients.open_stream(self.settings, request)
        try:
            *parts, end = [part async for part in stream.chunks()]
        finally:
            await stream.close()
        assert isinstance(end, GenerationEnd)
        return "".join(map(str, parts))

    def hear_all(self, requests: Sequence[GenerationRequest]) -> list[str]:
        async def hear() -> list[str]:
            return list(await asyncio.gather(*map(self.hear, requests)))

        return asyncio.run(hear())


def plain_inputs(folder: Path, question: Question) -> dict[str, torch.Tensor]:
    """Return the inputs of a model as upstream's processors make them, without our code.

    Upstream's processors themselves need torchvision for some families: what they do is repeated
    here, from `transformers/models/*/processing_*.py`.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    content = [{"type": "image"} for _ in question.images]
    turn = {"role": "user", "content": [*content, {"type": "text", "text": question.text}]}
    text = tokenizer.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    is_grid = "qwen" in str(folder)
    mark = "<|image_pad|>" if is_grid else "<image>"
    seen: dict[str, torch.Tensor] = {}
    if question.images:
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        seen = dict(processor(images=list(question.images), return_tensors="pt"))
        counts = [16 for _ in question.images]
        if is_grid:
            counts = [
                int(grid.prod()) // processor.merge_size**2 for grid in seen["image_grid_thw"]
            ]
        pieces = text.split(mark)
        text = pieces[0] + "".join(
            mark * count + piece for count, piece in zip(counts, pieces[1:], strict=True)
        )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    token = tokenizer.convert_tokens_to_ids(mark)
    types = {"mm_token_type_ids": (ids == token).int()} if is_grid and seen else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen, **types}


def plain_answer(model: Any, folder: Path, question: Question) -> str:  # noqa: ANN401 -- upstream's
    inputs = plain_inputs(folder, question)
    with torch.inference_mode():
        written = model.generate(
            **inputs, max_new_tokens=MOST, do_sample=False, eos_token_id=[2], pad_token_id=0
        )
    new = written[0, inputs["input_ids"].shape[1] :]
    text: str = AutoTokenizer.from_pretrained(folder).decode(new, skip_special_tokens=True)
    return text.lstrip()


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    root = tmp_path_factory.mktemp("seen")
    settings = Settings(home=root / "home", allowed_hosts="testserver", slots=1)
    engine = open_home(settings)
    add_models(engine, root)
    path = tokenizer_service.socket_path(settings.home)
    tokenizer = SocketService(path, tokenizer_service.MODULE)
    client = TestClient(create_app(engine, settings))
    studio = Studio(settings, root, InferenceService(settings), tokenizer, client)
    studio.tick()
    with ticking(studio.tick):
        yield studio
    studio.inference.close()
    studio.tokenizer.close()
    engine.dispose()


def add_models(engine: Engine, root: Path) -> None:
    with unit_of_work(engine) as db:
        beat_at = now() + timedelta(hours=1)
        workers.heartbeat(db, Worker(name="w", pid=1, slots=1, beat_at=beat_at))
        for family in VISION_FAMILIES:
            write_vision_model(root / family, family)
            db.add(Model(name=family, kind="folder", location=str(root / family)))


def expected(studio: Studio, family: str) -> list[str]:
    """Return what plain transformers answers to each question."""
    if family not in studio.known:
        folder = studio.root / family
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        studio.known[family] = [plain_answer(model, folder, one) for one in QUESTIONS]
    answers: list[str] = studio.known[family]
    return answers


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_answers_are_those_of_plain_transformers(studio: Studio, family: VisionFamily) -> None:
    wanted = expected(studio, family)
    assert len({*wanted}) > 1

    # Twice: what an answer leaves behind must not change the next one.
    assert [studio.ask(family, one) for one in QUESTIONS] == wanted
    assert [studio.ask(family, one) for one in QUESTIONS[::-1]] == wanted[::-1]


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_answers_are_the_same_beside_others(studio: Studio, family: VisionFamily) -> None:
    requests = [studio.request(family, one) for one in QUESTIONS]

    assert studio.hear_all(requests * 2) == expected(studio, family) * 2


def write_adapter(base: Path, folder: Path, targets: Sequence[str]) -> None:
    """Write an adapter that has learnt nothing, and changes every answer."""
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_pretrained(base)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=32, init_lora_weights=False, target_modules=targets
    )
    get_peft_model(model, config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_answer_beside_their_base(
    studio: Studio, family: VisionFamily, adapter: str
) -> None:
    from peft import PeftModel  # noqa: PLC0415 -- heavy import

    folder = studio.root / family
    write_adapter(folder, studio.root / f"{family}-{adapter}", ADAPTERS[adapter])
    base = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(base, studio.root / f"{family}-{adapter}").eval()
    wanted = [plain_answer(tuned, folder, one) for one in QUESTIONS]
    assert wanted != expected(studio, family)

    requests = [
        studio.request(family, question, name) for question in QUESTIONS for name in ("", adapter)
    ]
    heard = studio.hear_all(requests)
    assert heard[1::2] == wanted
    assert heard[::2] == expected(studio, family)


def test_turned_image_is_seen_as_it_is_shown(studio: Studio) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = BytesIO()
    IMAGES[2].save(file, "PNG", exif=exif)
    with Image.open(BytesIO(file.getvalue())) as turned:
        upright = ImageOps.exif_transpose(turned).convert("RGB")
    request = studio.request("qwen2_5_vl", Question("What is it?", [upright]))
    sent = request.model_copy(update={"images": [file.getvalue()]})

    assert studio.hear_all([sent]) == studio.hear_all([request])


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_tokens_of_an_answer_are_scored_after_its_image(
    studio: Studio, family: VisionFamily
) -> None:
    text = studio.ask(family, QUESTIONS[0])
    parts = [{"type": "image_url", "image_url": {"url": data_url(encode(IMAGES[0]))}}]
    content = [*parts, {"type": "text", "text": QUESTIONS[0].text}]
    body = {
        "model": family,
        "messages": [{"role": "user", "content": content}],
        "logprobs": True,
        "x_studio": {"score": "red"},
    }
    answer = studio.client.post("/v1/chat/completions", json=body).json()

    folder = studio.root / family
    inputs = plain_inputs(folder, QUESTIONS[0])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("red<|im_end|>", add_special_tokens=False)["input_ids"]
    added = torch.tensor([ids])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], added], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        types = inputs["mm_token_type_ids"]
        inputs["mm_token_type_ids"] = torch.cat([types, torch.zeros_like(added).int()], dim=1)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logprobs = model(**inputs).logits[0].log_softmax(dim=-1)
    start = inputs["input_ids"].shape[1] - len(ids) - 1
    wanted = [float(logprobs[start + place, token]) for place, token in enumerate(ids)]
    found = [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
    assert found == pytest.approx(wanted[: len(found)], abs=1e-4)
    assert text == studio.ask(family, QUESTIONS[0])


def test_prompt_without_places_for_its_images_is_refused(studio: Studio) -> None:
    request = studio.request("llava", QUESTIONS[0])
    with pytest.raises(InvalidError, match="places for images"):
        studio.hear_all([request.model_copy(update={"ids": request.ids[-5:]})])

    assert studio.ask("llava", QUESTIONS[0]) == expected(studio, "llava")[0]


def test_text_that_names_a_place_for_an_image_is_refused_alone(studio: Studio) -> None:
    """A completion has no template: its text may hold the mark, and must not break others."""
    body = {"model": "llava", "prompt": "<image> What is it?", "max_tokens": 4}
    refused = studio.client.post("/v1/completions", json=body)

    assert refused.status_code == 400
    assert "places for images" in refused.json()["error"]["message"]
    assert studio.ask("llava", QUESTIONS[0]) == expected(studio, "llava")[0]
