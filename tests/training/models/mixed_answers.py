"""Answers of several adapters that are decoded together, and of each alone."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.runner.inference.answer import Answer, start_answer
from studio.runner.inference.decoding import decode, fits
from studio.runner.inference.mixed_adapters import answering
from studio.runner.inference.model_cache import LoadedBase, ModelCache
from tests.support import generated_answers
from tests.training import tiny

LORAS: dict[str, dict[str, Any]] = {
    "narrow": {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "wide": {"r": 16, "lora_alpha": 12, "use_rslora": True, "target_modules": "all-linear"},
    "last": {
        "r": 4,
        "lora_alpha": 4,
        "target_modules": ["up_proj", "down_proj"],
        "layers_to_transform": [1],
        "lora_dropout": 0.5,
    },
}
"""Plain LoRA of different ranks, scales and layers."""

ROWS = (*LORAS, "base")


@dataclass(frozen=True, slots=True)
class Models:
    """A base and the adapters written for it."""

    root: Path

    @property
    def base(self) -> Path:
        return self.root / "base"

    @property
    def architecture(self) -> str:
        return str(AutoConfig.from_pretrained(self.base).architectures[0])

    def request(self, name: str, number: int = 0, **changes: Any) -> GenerationRequest:  # noqa: ANN401 -- any field
        ids = [5 + (7 * number + 3 * place) % 250 for place in range(3 + 5 * number % 17)]
        asked = GenerationRequest(
            model=str(self.base),
            adapter="" if name == "base" else str(self.root / name),
            ids=ids,
            stops=[-1],
            most=24,
            temperature=0,
            top_logprobs=2,
            is_turn=False,
        )
        return asked.model_copy(update=changes)

    def write(self, name: str, config: PeftConfig) -> Path:
        """Write an adapter that has learnt nothing, and changes every answer."""
        torch.manual_seed(sum(name.encode()))
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(self.base), config)
        for key, weight in model.named_parameters():
            if "ia3_" in key or "modules_to_save" in key or "token_adapter" in key:
                weight.data += 0.5 * torch.randn_like(weight)
        model.save_pretrained(self.root / name)
        tiny.tokenizer().save_pretrained(self.root / name)
        return self.root / name

    def write_lora(self, name: str, **settings: Any) -> Path:  # noqa: ANN401 -- any field
        plain = {"task_type": "CAUSAL_LM", "init_lora_weights": False, "target_modules": ["q_proj"]}
        plain["fan_in_fan_out"] = "GPT2" in self.architecture
        return self.write(name, LoraConfig(**plain | settings))


def make_models(root: Path, config: PreTrainedConfig) -> Models:
    tiny.write_model(root / "base", config)
    model = AutoModelForCausalLM.from_pretrained(root / "base")
    for weight in model.parameters():
        # As they are made, weights are so small that the words before a token hardly count.
        weight.data *= 12 if weight.dim() > 1 else 1
    model.save_pretrained(root / "base")
    return Models(root)


def make_models_with_loras(root: Path) -> Models:
    models = make_models(root, tiny.llama())
    for name, settings in LORAS.items():
        models.write_lora(name, **settings)
    return models


@dataclass(slots=True)
class Heard:
    """What arrives of an answer, and when its client hangs up."""

    leaves_after: int = 10**6
    pieces: list[GenerationChunk] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> list[int]:
        return [token.id for piece in self.pieces for token in piece.tokens]

    @property
    def logprobs(self) -> list[float | None]:
        return [token.logprob for piece in self.pieces for token in piece.tokens]

    def is_gone(self) -> bool:
        return len(self.pieces) >= self.leaves_after


@dataclass(slots=True)
class Room:
    """Answers of a base that wait; one joins at each pass if it can."""

    base: LoadedBase
    waiting: list[tuple[GenerationRequest, Heard]]
    passes: list[list[str]] = field(default_factory=list)
    """The adapters of each pass, by their names in peft."""

    def are_waiting(self, running: Sequence[Answer]) -> bool:
        return bool(self.waiting) and fits(running, len(self.waiting[0][0].ids))

    def take(self, running: Sequence[Answer]) -> list[Answer]:
        if not self.are_waiting(running):
            return []
        request, heard = self.waiting[0]
        name = self.base.activate_beside(request, {answer.adapter for answer in running})
        if name is None:
            return []
        self.waiting.pop(0)
        return [self.start(request, heard, name)]

    def start(self, request: GenerationRequest, heard: Heard, name: str) -> Answer:
        answer = start_answer(
            request,
            request.most or 0,
            self.base.plain,
            self.base.tokenizer_for(request),
            heard.pieces.append,
            heard.is_gone,
        )
        answer.adapter = name
        return answer

    def adapting(self, answers: Sequence[Answer]) -> AbstractContextManager[None]:
        names = [answer.adapter for answer in answers]
        self.passes.append(names)
        return answering(self.base.model, names)

    def decode(self) -> None:
        while self.waiting:
            first = self.take([])
            tokenizer = first[0].text.tokenizer
            decode(first, self.base.plain, tokenizer, self, self.adapting)


def ask(loaded: ModelCache, requests: Sequence[GenerationRequest]) -> tuple[list[Heard], Room]:
    heard = [Heard() for _ in requests]
    return heard, ask_for(loaded, [*zip(requests, heard, strict=True)])


def ask_for(loaded: ModelCache, asked: Sequence[tuple[GenerationRequest, Heard]]) -> Room:
    room = Room(loaded.base_for(asked[0][0]), [*asked])
    room.decode()
    return room


def alone(request: GenerationRequest) -> generated_answers.Answer:
    """Return the answer of a base that is loaded for it, with no other adapter on it."""
    return _alone(request.model_dump_json())


@cache
def _alone(request: str) -> generated_answers.Answer:
    asked = GenerationRequest.model_validate_json(request)
    with ModelCache().model_for(asked) as (model, tokenizer):
        return generated_answers.answer(asked, model, tokenizer)


def assert_same(heard: Heard, expected: generated_answers.Answer) -> None:
    assert heard.tokens == [token.id for token in expected.tokens]
    assert heard.text == expected.text
    found = [token.logprob for token in expected.tokens]
    assert heard.logprobs == pytest.approx(found, abs=1e-4)
    assert heard.pieces[-1].end == expected.end
