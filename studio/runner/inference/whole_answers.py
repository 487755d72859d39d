"""Whole answers of a loaded model, decoded together."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.runner.inference.answer import start_answer
from studio.runner.inference.decoding import MAX_ANSWERS, decode
from studio.runner.inference.generation import token_budget


def write_answers(
    requests: Sequence[GenerationRequest],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> list[tuple[str, GenerationEnd]]:
    """Return the text of the answer to each request, and how it ended.

    Raises:
        InvalidError: a prompt leaves no room for an answer, or an answer cannot keep its format.

    """
    written: list[tuple[str, GenerationEnd]] = []
    for start in range(0, len(requests), MAX_ANSWERS):
        written += _write_together(requests[start : start + MAX_ANSWERS], model, tokenizer)
    return written


def _write_together(
    requests: Sequence[GenerationRequest],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> list[tuple[str, GenerationEnd]]:
    chunks: list[list[GenerationChunk]] = [[] for _ in requests]
    config = model.config.get_text_config()
    answers = [
        start_answer(
            request, token_budget(request, config), model, tokenizer, sent.append, lambda: False
        )
        for request, sent in zip(requests, chunks, strict=True)
    ]
    decode(answers, model, tokenizer)
    return [_collect(sent) for sent in chunks]


def _collect(chunks: Sequence[GenerationChunk]) -> tuple[str, GenerationEnd]:
    last = chunks[-1]
    if last.failure is not None:
        raise InvalidError(last.failure.message, hint=last.failure.hint)
    assert last.end is not None  # noqa: S101 -- decoded to its end
    return "".join(chunk.text for chunk in chunks), last.end
