"""How likely a model finds the tokens of a prompt, each after those before it."""

import inspect
from collections.abc import Callable, Iterator, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.protocols.inference_service import MAX_LINE_TOKENS, GenerationChunk, GenerationRequest
from studio.runner.inference import image_inputs
from studio.runner.inference.image_inputs import ImageInputs
from studio.runner.inference.text_stream import Likelihood, TextStream, send_piece
from studio.runner.inference.token_text import ScoredToken


def likelihoods(logits: torch.Tensor, tokens: Sequence[int], top: int) -> Iterator[Likelihood]:
    """Yield how likely each token is, by the logits in its place, and which are likeliest."""
    logprobs = logits.float().log_softmax(dim=-1)
    own = logprobs.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    best = logprobs.topk(min(top, logprobs.shape[-1]), dim=-1)
    for logprob, ids, values in zip(own, best.indices.tolist(), best.values.tolist(), strict=True):
        yield Likelihood(logprob, [ScoredToken(*pair) for pair in zip(ids, values, strict=True)])


def send_prompt_scores(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[GenerationChunk], None],
    images: ImageInputs | None = None,
) -> None:
    """Send the tokens of a prompt from `scored_from` on, with their log-probabilities.

    Raises:
        InvalidError: another half of the model reads the prompt.

    """
    assert request.scored_from is not None  # noqa: S101 -- it is wanted
    if model.config.is_encoder_decoder:
        raise InvalidError(
            "This model reads a prompt in another half, and does not predict it.",
            hint="Ask for the log-probabilities of its answer only.",
        )
    first = request.scored_from
    text = TextStream(tokenizer, [], strips_start=False)
    text.start_after(request.ids[:first])
    unpredicted = [Likelihood(None)] if first == 0 else []
    logits = _predictions(request.ids, max(first, 1), model, images)
    new = ""
    for number, (token, likelihood) in enumerate(
        zip(request.ids[first:], _all(unpredicted, request, logits), strict=True), 1
    ):
        new += text.add(token, likelihood)
        if number % MAX_LINE_TOKENS == 0:
            send_piece(new, text, send)
            new = ""
    send_piece(new + text.finish(), text, send)


def _all(
    unpredicted: Sequence[Likelihood], request: GenerationRequest, logits: torch.Tensor
) -> Iterator[Likelihood]:
    yield from unpredicted
    tokens = request.ids[len(request.ids) - len(logits) :]
    for start in range(0, len(tokens), MAX_LINE_TOKENS):  # Float32 copies of all would be large.
        part = slice(start, start + MAX_LINE_TOKENS)
        yield from likelihoods(logits[part], tokens[part], request.top_logprobs or 0)


def _predictions(
    ids: Sequence[int], first: int, model: PreTrainedModel, images: ImageInputs | None
) -> torch.Tensor:
    """Return the logits that predict the tokens from `first` on."""
    inputs = torch.tensor([ids], device=model.device)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # The logits of the other tokens need not be computed.
    has_choice = "logits_to_keep" in inspect.signature(base.forward).parameters
    kept = {"logits_to_keep": len(ids) - first + 1} if has_choice else {}
    seen = image_inputs.join([images], inputs, model)
    with torch.inference_mode():
        output = model(input_ids=inputs, attention_mask=torch.ones_like(inputs), **kept, **seen)
    logits: torch.Tensor = output.logits[0, -(len(ids) - first + 1) : -1]
    return logits
