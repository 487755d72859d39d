"""Models of this studio that graders ask: one that holds conversations, or a reward model."""

from collections.abc import Mapping

import torch

from studio.errors import NotFoundError
from studio.graders.model_questions import AskModel, ModelQuestion, ModelReply
from studio.protocols import grader_judges
from studio.protocols.grader_judges import LocalJudge
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import ModelJudge
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.whole_answers import write_answers
from studio.runner.judges.local_models import score_turns
from studio.training.data import token_preview


def ask_local(judges: Mapping[str, LocalJudge], cache: ModelCache) -> AskModel:
    """Return what asks these models, by their names; they take turns in the cache's memory."""

    def ask(question: ModelQuestion) -> ModelReply:
        judge = judges.get(question.model)
        if judge is None:
            raise NotFoundError(f"The model {question.model[:200]} cannot be asked here.")
        if isinstance(judge, ModelJudge):
            return _ask_chat_model(judge.model, question, cache)
        with cache.model_for(judge.model) as (model, tokenizer), torch.inference_mode():
            score, tokens = score_turns(judge, model, tokenizer, question.messages)
        return grader_judges.reward_reply(question, score, tokens)

    return ask


def _ask_chat_model(
    request: GenerationRequest, question: ModelQuestion, cache: ModelCache
) -> ModelReply:
    sampling = question.sampling
    with cache.model_for(request) as (model, tokenizer):
        row = {"messages": [_to_turn(message) for message in question.messages]}
        asked = TokenizerRequest(kind="prompt", model=request.model, row=row)
        prompt = token_preview.tokenise_prompt(asked, tokenizer)
        filled = request.model_copy(
            update={
                "ids": prompt.ids,
                "stops": prompt.stops,
                "most": question.max_tokens,
                "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
                "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
                "seed": sampling.seed,
                "json_schema": dict(question.reply_schema),
            }
        )
        ((text, end),) = write_answers([filled], model, tokenizer)
    return ModelReply(text=text, model=question.model, tokens=len(prompt.ids) + end.tokens)


def _to_turn(message: Mapping[str, str]) -> dict[str, str]:
    role = "system" if message["role"] == "developer" else message["role"]
    return {**message, "role": role}
