"""Sample answers from the model in training, with the log-probability of each token."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from studio.training.models.eval_context import evaluation_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How answers are sampled: from all tokens, by their probabilities at a temperature."""

    max_new_tokens: int
    temperature: float
    batch_size: int
    """Answers written at a time."""
    stop_tokens: Sequence[int]
    """The tokens that end an answer."""
    pad_token_id: int


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """What a model wrote to a prompt."""

    ids: list[int]
    """Its tokens, with the one that ends it."""
    logps: list[float]
    """The log-probability of each token when it was written, at the sampling temperature."""
    is_cut_off: bool
    """Whether it had not come to an end after the maximum number of tokens."""


def write_answers(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seed: int
) -> list[WrittenAnswer]:
    """Return one answer to each prompt; the same prompts, weights and seed give the same answers.

    The random state of the run stays as it is.
    """
    answers: list[WrittenAnswer] = []
    with evaluation_mode(model), _plain_generation(model):
        torch.manual_seed(seed)
        for batch in _split(model, prompts, settings.batch_size):
            answers += _write_batch(model, batch, settings)
    return answers


def _split(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], size: int
) -> Iterator[Sequence[Sequence[int]]]:
    """Yield prompts in batches. Recurrent models read padding as text: theirs have one length."""
    start = 0
    while start < len(prompts):
        end = min(start + size, len(prompts))
        if model._is_stateful:  # noqa: SLF001 -- upstream has no other word
            length = len(prompts[start])
            same = (i for i in range(start, end) if len(prompts[i]) != length)
            end = next(same, end)
        yield prompts[start:end]
        start = end


def _write_batch(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], settings: SamplingSettings
) -> list[WrittenAnswer]:
    width = max(map(len, prompts))
    rows = [[settings.pad_token_id] * (width - len(ids)) + list(ids) for ids in prompts]
    masks = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    recorder = _LogProbRecorder(settings.temperature)
    written = model.generate(
        input_ids=torch.tensor(rows, device=model.device),
        attention_mask=torch.tensor(masks, device=model.device),
        do_sample=True,
        temperature=settings.temperature,
        top_k=0,
        max_new_tokens=settings.max_new_tokens,
        eos_token_id=list(settings.stop_tokens),
        pad_token_id=settings.pad_token_id,
        use_cache=True,
        logits_processor=LogitsProcessorList([recorder]),
    )
    logps = recorder.finish(written).tolist()
    new: list[list[int]] = written[:, width:].tolist()
    return [
        _end_answer(ids, row, settings.stop_tokens) for ids, row in zip(new, logps, strict=True)
    ]


def _end_answer(ids: list[int], logps: list[float], stop_tokens: Sequence[int]) -> WrittenAnswer:
    """Return an answer up to the token that ends it; what follows is padding."""
    ends = (i for i, token in enumerate(ids, 1) if token in stop_tokens)
    end = next(ends, None)
    return WrittenAnswer(ids[:end], logps[:end], is_cut_off=end is None)


class _LogProbRecorder(LogitsProcessor):  # type: ignore[misc] # upstream is untyped
    """Records how likely each token was when it was sampled. Upstream calls it before each token.

    Upstream would return all logits of all tokens instead, which are far larger.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._previous: Tensor | None = None
        self._steps: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._record(input_ids)
        self._previous = (scores.float() / self._temperature).log_softmax(dim=-1)
        return scores

    def finish(self, ids: Tensor) -> Tensor:
        """Return the log-probabilities of all new tokens: shape (answers, tokens)."""
        self._record(ids)
        return torch.stack(self._steps, dim=1)

    def _record(self, ids: Tensor) -> None:
        if self._previous is not None:
            self._steps.append(self._previous.gather(1, ids[:, -1:]).squeeze(1))


@contextmanager
def _plain_generation(model: PreTrainedModel) -> Iterator[None]:
    """Sample as it is written here, whatever the base model's own settings for answers are.

    A model that was saved with a repetition penalty or top-p would otherwise write answers from
    another distribution than the one that learns from them.
    """
    owners: list[Any] = [model]
    if hasattr(model, "get_base_model"):
        owners.append(model.get_base_model())
    saved = [owner.generation_config for owner in owners]
    for owner in owners:
        owner.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for owner, config in zip(owners, saved, strict=True):
            owner.generation_config = config
