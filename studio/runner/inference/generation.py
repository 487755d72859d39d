"""Generate the answer of a model token by token."""

from collections.abc import Callable

import torch
from transformers import (
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
)
from transformers.generation.streamers import BaseStreamer

from studio.errors import InvalidError
from studio.protocols.inference_service import (
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
)
from studio.recipe.base import BeamSearch
from studio.runner.inference.prompt_scores import likelihoods
from studio.runner.inference.text_stream import Likelihood, TextStream, send_piece
from studio.training.evaluation.sample_answers import record_compute_formats


class _TokenStreamer(BaseStreamer):  # type: ignore[misc] # upstream is untyped
    """Passes each token on, except for the prompt, which arrives first."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._is_prompt:
            self._is_prompt = False
            return
        for token in value.flatten().tolist():
            self._on_token(token)

    def end(self) -> None:
        """Do nothing: no token is buffered."""


class _StopWhen(StoppingCriteria):  # type: ignore[misc] # upstream is untyped
    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    def __call__(
        self, input_ids: torch.Tensor, _scores: torch.Tensor, **_rest: object
    ) -> torch.Tensor:
        return torch.full((len(input_ids),), self._should_stop(), device=input_ids.device)


class _RawLogits(LogitsProcessor):  # type: ignore[misc] # upstream is untyped
    """Keeps how likely the tokens of a step are, before sampling changes it."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._scores: torch.Tensor | None = None

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._scores = scores.clone()
        return scores

    def likelihood(self, token: int) -> Likelihood:
        """Return how likely the token is that was chosen in the last step."""
        assert self._scores is not None  # noqa: S101 -- a token follows its logits
        return next(likelihoods(self._scores, [token], self._top))


def generate(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[GenerationChunk], None],
    is_gone: Callable[[], bool],
) -> GenerationEnd:
    """Generate an answer and send its text as it arrives. Stop when the client is gone."""
    text = TextStream(tokenizer, request.stop, request.is_turn)
    raw = None if request.top_logprobs is None else _RawLogits(request.top_logprobs)
    written: list[int] = []

    def on_token(token: int) -> None:
        written.append(token)
        if token not in request.stops:
            new = text.add(token, raw.likelihood(token) if raw else None)
            send_piece(new, text, send)

    if request.seed is not None:
        torch.manual_seed(request.seed)
    inputs, is_streamed = torch.tensor([request.ids], device=model.device), request.num_beams == 1
    with torch.inference_mode(), record_compute_formats(model) as formats:
        output = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=request.most,
            eos_token_id=request.stops,
            pad_token_id=tokenizer.pad_token_id,
            # Which draft becomes the answer is known at the end.
            streamer=_TokenStreamer(on_token) if is_streamed else None,
            stopping_criteria=[_StopWhen(lambda: text.has_stopped or is_gone())],
            logits_processor=[raw] if raw else None,
            **_sampling_arguments(request),
            **request.spoken,
        )
    if not is_streamed:
        start = 1 if model.config.is_encoder_decoder else len(request.ids)
        for token in output[0, start:].tolist():
            on_token(token)
    send_piece(text.finish(), text, send)
    has_ended = text.has_stopped or written[-1] in request.stops
    return GenerationEnd(
        reason="stop" if has_ended else "length",
        tokens=len(written),
        computed_in=" and ".join(sorted(formats)),
    )


def token_budget(request: GenerationRequest, config: object) -> int:
    """Return how many tokens an answer may have.

    Raises:
        InvalidError: the prompt leaves no room for an answer.

    """
    if request.top_logprobs is not None and request.num_beams > 1:
        raise InvalidError(
            "An answer that is searched for with several beams has no log-probabilities.",
            hint="Set the number of beams to 1.",
        )
    context = getattr(config, "max_position_embeddings", None) or 2**20
    if getattr(config, "is_encoder_decoder", False):
        # The prompt is read by another half of the model, and was truncated.
        return min(context, request.most or context)
    remaining = context - len(request.ids)
    if request.most == 0 and remaining >= 0:
        return 0
    if remaining < 1:
        raise InvalidError(
            f"The prompt has {len(request.ids):,} tokens; this model's context is {context:,}.",
            hint="Shorten the messages.",
            param="messages",
        )
    return min(remaining, request.most or remaining)


def _sampling_arguments(request: GenerationRequest) -> dict[str, object]:
    """Return the sampling arguments; the model's own generation config is ignored.

    Options that OpenAI's API lacks are switched off, so that a temperature behaves as it does
    there.
    """
    search = BeamSearch(request.num_beams, request.length_penalty)
    plain: dict[str, object] = {"repetition_penalty": 1.0, "use_cache": True} | search.arguments
    if request.temperature == 0:
        return plain | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    chosen: dict[str, object] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0,
    }
    return plain | {"do_sample": True} | chosen
