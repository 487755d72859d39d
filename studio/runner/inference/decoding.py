"""Decode several answers of one model together, or of several adapters on it.

They are decoded in passes. A pass reads all prompts, with what has been written of their answers,
and writes on. Whatever waits joins at the next pass, so a pass ends early if an answer waits; but
only after it has written for as long as the next one will take to read.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from transformers import (
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
)

from studio.recipe.base import BeamSearch
from studio.runner.inference import image_inputs
from studio.runner.inference.answer import Answer
from studio.runner.inference.prompt_scores import likelihoods
from studio.training.evaluation.sample_answers import record_compute_formats

MAX_ANSWERS = 8
"""How many answers are decoded together."""

MAX_PADDED_TOKENS = 16_384
"""How many tokens several answers may have in memory at a pass, with padding."""


_PLAIN: dict[str, object] = {
    "do_sample": False,
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "repetition_penalty": 1.0,
    "use_cache": True,
} | BeamSearch().arguments
"""Leaves the choice of tokens to the answers; the model's own generation config is ignored."""


class Newcomers(Protocol):
    """The answers that wait for the same base model."""

    def are_waiting(self, running: Sequence[Answer]) -> bool:
        """Whether an answer waits that can be decoded with the running answers."""

    def take(self, running: Sequence[Answer]) -> list[Answer]:
        """Start and return those that can be decoded with the running answers."""


class _NoNewcomers:
    """No answer waits."""

    def are_waiting(self, _running: Sequence[Answer]) -> bool:
        return False

    def take(self, _running: Sequence[Answer]) -> list[Answer]:
        return []


NO_NEWCOMERS: Newcomers = _NoNewcomers()

Adapting = Callable[[Sequence[Answer]], AbstractContextManager[None]]
"""Lets each of the answers of a pass be given by its own adapter."""


def _as_it_is(_answers: Sequence[Answer]) -> AbstractContextManager[None]:
    return nullcontext()


def fits(running: Sequence[Answer], prompt: int) -> bool:
    """Whether a prompt of this length can be decoded with the running answers."""
    if not running:
        return True
    longest = max(prompt, *(len(answer.ids) for answer in running))
    size = len(running) + 1
    return size <= MAX_ANSWERS and size * longest <= MAX_PADDED_TOKENS


def decode(
    answers: Sequence[Answer],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    newcomers: Newcomers = NO_NEWCOMERS,
    adapting: Adapting = _as_it_is,
) -> None:
    """Decode answers to their ends, and those that join them. One at a time if memory is short."""
    token = image_inputs.image_token(model)

    def run(answers: Sequence[Answer], newcomers: Newcomers) -> None:
        _cut_unreadable(answers, token, formats)
        if left := [answer for answer in answers if answer.end is None]:
            with adapting(left):
                _Pass(left, formats, newcomers, token).run(model, tokenizer)

    running = list(answers)
    with record_compute_formats(model) as formats:
        while running:
            try:
                run(running, newcomers)
            except torch.OutOfMemoryError:
                if len(running) == 1:
                    raise
                torch.cuda.empty_cache()
                for answer in running:
                    if answer.end is None:
                        run([answer], NO_NEWCOMERS)
            running = [answer for answer in running if answer.end is None]
            running += newcomers.take(running)


def _cut_unreadable(answers: Sequence[Answer], token: int | None, formats: set[str]) -> None:
    """End answers that cannot be read again: the model wrote an image's token in them.

    That is possible only where a pass ends at the context of the model or for lack of memory.
    """
    if any(answer.images for answer in answers):
        for answer in answers:
            if answer.end is None and token in answer.written:
                answer.cut(" and ".join(sorted(formats)))


@dataclass(slots=True)
class _Pass:
    answers: Sequence[Answer]
    formats: set[str]
    newcomers: Newcomers
    image_token: int | None = None
    started_at: float = field(default_factory=time.monotonic)
    read_at: float | None = None
    """When all prompts had been read."""

    def run(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Decode until all answers have ended, or another pass is due."""
        prompts = [answer.ids for answer in self.answers]
        longest = max(map(len, prompts))
        padding = tokenizer.pad_token_id or 0
        inputs = [[padding] * (longest - len(ids)) + ids for ids in prompts]
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
        stops = {tuple(answer.request.stops) for answer in self.answers}
        (spoken,) = {tuple(answer.request.spoken.items()) for answer in self.answers}
        ids = torch.tensor(inputs, device=model.device)
        images = image_inputs.join([answer.images for answer in self.answers], ids, model)
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=torch.tensor(mask, device=model.device),
                max_new_tokens=self._most(longest, model),
                # If these differ, each answer ends by its own alone; -1 is no token.
                eos_token_id=list(*stops) if len(stops) == 1 else [-1],
                pad_token_id=tokenizer.pad_token_id,
                logits_processor=[_Choose(self)],
                stopping_criteria=[_StopWhenDone(self)],
                **_PLAIN,
                **dict(spoken),
                **images,
            )

    def _most(self, longest: int, model: PreTrainedModel) -> int:
        """Return how many tokens to write at most: no position may be beyond the context."""
        most = max(answer.remaining for answer in self.answers)
        config = model.config.get_text_config()
        context: int | None = getattr(config, "max_position_embeddings", None)
        if len(self.answers) == 1 or context is None:
            return most  # The budget of an answer observes the context.
        return max(1, min(most, context - longest))

    def choose(self, scores: torch.Tensor) -> torch.Tensor:
        """Add the next token of each answer, and return scores that leave no other."""
        self.read_at = self.read_at or time.monotonic()
        tokens = torch.cat(
            [answer.choose(scores[index : index + 1]) for index, answer in enumerate(self.answers)]
        )
        for index, (answer, token) in enumerate(zip(self.answers, tokens.tolist(), strict=True)):
            if answer.end is None:
                top = answer.request.top_logprobs
                likelihood = (
                    None
                    if top is None
                    else next(likelihoods(scores[index : index + 1], [token], top))
                )
                answer.add(token, likelihood)
        return torch.full_like(scores, float("-inf")).scatter(1, tokens[:, None], 0.0)

    def done(self) -> list[bool]:
        """Return which answers have ended; all, if the next pass is due."""
        computed_in = " and ".join(sorted(self.formats))
        ended = [answer.end_if_done(computed_in) for answer in self.answers]
        return [True] * len(ended) if self._is_next_due(ended) else ended

    def _is_next_due(self, ended: Sequence[bool]) -> bool:
        """Whether another pass would do better: with those that wait, or without the ended."""
        running = [answer for answer in self.answers if answer.end is None]
        are_waiting = self.newcomers.are_waiting(running)
        has_idle_rows = len(running) * 2 <= len(ended)
        if not running or not (are_waiting or has_idle_rows):
            return False
        if any(self.image_token in answer.written for answer in running):
            return False  # They cannot be read again.
        assert self.read_at is not None  # noqa: S101 -- a token has been chosen
        return time.monotonic() - self.read_at >= self.read_at - self.started_at


class _Choose(LogitsProcessor):  # type: ignore[misc] # upstream is untyped
    """Chooses the token of each answer by its own parameters and its own chance."""

    def __init__(self, running: _Pass) -> None:
        self._pass = running

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self._pass.choose(scores)


class _StopWhenDone(StoppingCriteria):  # type: ignore[misc] # upstream is untyped
    def __init__(self, running: _Pass) -> None:
        self._pass = running

    def __call__(
        self, input_ids: torch.Tensor, _scores: torch.Tensor, **_rest: object
    ) -> torch.Tensor:
        return torch.tensor(self._pass.done(), device=input_ids.device)
