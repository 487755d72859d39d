"""Generate the answer of a model token by token."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.recipe.base import BeamSearch
from studio.runner.inference import image_inputs
from studio.runner.inference.answer import Answer, start_answer
from studio.runner.inference.decoding import decode
from studio.training.evaluation.sample_answers import record_compute_formats


def generate(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[GenerationChunk], None],
    is_gone: Callable[[], bool],
) -> GenerationEnd:
    """Generate one answer and send its text as it arrives. Stop when the client is gone."""
    assert request.most is not None  # noqa: S101 -- within the budget of the model
    answer = start_answer(request, request.most, model, tokenizer, send, is_gone)
    if request.num_beams > 1:
        search(answer, model, tokenizer)
    else:
        decode([answer], model, tokenizer)
    assert answer.end is not None  # noqa: S101 -- decoded to its end
    return answer.end


def search(answer: Answer, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Follow several drafts of an answer; which of them it becomes is known at the end."""
    request = answer.request
    if request.seed is not None:
        torch.manual_seed(request.seed)
    inputs = torch.tensor([request.ids], device=model.device)
    with torch.inference_mode(), record_compute_formats(model) as formats:
        output = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=answer.most,
            eos_token_id=request.stops,
            pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=[_StopWhen(answer.is_gone)],
            **_search_arguments(request),
            **request.spoken,
            **image_inputs.join([answer.images], inputs, model),
        )
    start = 1 if model.config.is_encoder_decoder else len(request.ids)
    computed_in = " and ".join(sorted(formats))
    for token in output[0, start:].tolist():
        answer.add(token, None)
        if answer.end_if_done(computed_in):
            return
    answer.most = len(answer.written)
    answer.end_if_done(computed_in)


class _StopWhen(StoppingCriteria):  # type: ignore[misc] # upstream is untyped
    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    def __call__(
        self, input_ids: torch.Tensor, _scores: torch.Tensor, **_rest: object
    ) -> torch.Tensor:
        return torch.full((len(input_ids),), self._should_stop(), device=input_ids.device)


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
    if (request.json_schema is not None or request.must_call) and request.num_beams > 1:
        raise InvalidError(
            "An answer that is searched for with several beams cannot follow a JSON schema.",
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


def _search_arguments(request: GenerationRequest) -> dict[str, object]:
    """Return the arguments of a search with several beams.

    The model's own generation config is ignored.
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
