"""Answers on a GPU: those that are decoded together, and beside a run that has the GPU."""

from pathlib import Path

import pytest
import torch

from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.runner.inference.answer import start_answer
from studio.runner.inference.decoding import decode
from studio.runner.inference.model_cache import ModelCache
from tests.training import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
    pytest.mark.filterwarnings("ignore"),
]


def request(model: Path, number: int) -> GenerationRequest:
    ids = [5 + (7 * number + 3 * place) % 250 for place in range(3 + 5 * number % 17)]
    return GenerationRequest(model=str(model), ids=ids, stops=[2], most=24, temperature=0)


def answers(requests: list[GenerationRequest]) -> list[list[GenerationChunk]]:
    heard: list[list[GenerationChunk]] = [[] for _ in requests]
    with ModelCache().model_for(requests[0]) as (model, tokenizer):
        assert next(model.parameters()).device.type == "cuda"
        started = [
            start_answer(one, 24, model, tokenizer, chunks.append, lambda: False)
            for one, chunks in zip(requests, heard, strict=True)
        ]
        decode(started, model, tokenizer)
    return heard


def test_answers_together_equal_answers_alone(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    requests = [request(model, number) for number in range(8)]

    together = answers(requests)

    for one, heard in zip(requests, together, strict=True):
        (alone,) = answers([one])
        assert heard[-1].end == alone[-1].end
        assert heard[-1].end is not None
        assert heard[-1].end.computed_in == "float32"
        text, expected = ("".join(chunk.text for chunk in chunks) for chunks in (heard, alone))
        assert text == expected
