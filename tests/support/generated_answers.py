"""What a model answers, without a service around it."""

from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.protocols.inference_service import (
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    TokenScore,
)
from studio.runner.inference.generation import generate


@dataclass(frozen=True, slots=True)
class Answer:
    pieces: list[GenerationChunk]
    end: GenerationEnd

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> list[TokenScore]:
        return [token for piece in self.pieces for token in piece.tokens]


def answer(
    request: GenerationRequest, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Answer:
    pieces: list[GenerationChunk] = []
    end = generate(request, model, tokenizer, pieces.append, lambda: False)
    return Answer(pieces, end)
