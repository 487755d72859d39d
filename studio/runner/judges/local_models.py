"""Judges that are models of this studio: one that holds conversations, or a reward model."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import ModelJudge, Pair, PairResult, RewardJudge
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.runner.inference.generation import generate, token_budget
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.reading import give_scores
from studio.runner.judges.both_orders import MAX_TOKENS, Judge, ask_both_orders
from studio.training import reward_models
from studio.training.data import token_preview


def build(judge: ModelJudge | RewardJudge) -> Judge:
    """Return the judge, which loads its model at the first pair."""
    if judge.kind == "reward":
        return partial(_judge_by_score, judge)
    return partial(_judge_by_words, judge)


def _judge_by_words(judge: ModelJudge, pairs: Sequence[Pair]) -> Iterator[PairResult]:
    with ModelCache().model_for(judge.model) as (model, tokenizer):
        ask = partial(_ask, judge.model, model, tokenizer)
        for pair in pairs:
            yield ask_both_orders(pair, ask)


def _ask(
    request: GenerationRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    question: str,
) -> str:
    """Return a model's most likely reply; why it has none, if the question is too long for it."""
    row = {"messages": [{"role": "user", "content": question}]}
    asked = TokenizerRequest(kind="prompt", model=request.model, row=row)
    prompt = token_preview.tokenise_prompt(asked, tokenizer)
    filled = request.model_copy(
        update={"ids": prompt.ids, "stops": prompt.stops, "temperature": 0.0, "most": MAX_TOKENS}
    )
    try:
        most = token_budget(filled, model.config.get_text_config())
    except InvalidError as error:
        return error.message  # No verdict on this pair; others may fit.
    parts: list[str] = []
    generate(
        filled.model_copy(update={"most": most}),
        model,
        tokenizer,
        lambda chunk: parts.append(chunk.text),
        lambda: False,
    )
    return "".join(parts)


def _judge_by_score(judge: RewardJudge, pairs: Sequence[Pair]) -> Iterator[PairResult]:
    """Compare scores. A reward model reads one answer at a time, so their order does not matter."""
    with ModelCache().model_for(judge.model) as (model, tokenizer), torch.inference_mode():
        for pair in pairs:
            base, tuned = (
                score_turns(judge, model, tokenizer, _turns(pair.prompt, answer))[0]
                for answer in (pair.base, pair.tuned)
            )
            scores = f"base {base:.4g}, tuned {tuned:.4g}"
            is_tie = base == tuned
            yield PairResult(
                position=pair.position,
                base_first="tie" if is_tie else "A" if base > tuned else "B",
                tuned_first="tie" if is_tie else "A" if tuned > base else "B",
                base_first_reply=scores,
                tuned_first_reply=scores,
            )


def _turns(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def score_turns(
    judge: RewardJudge,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Mapping[str, str]],
) -> tuple[float, int]:
    """Return what a reward model says of a conversation, and how many tokens it has read."""
    ids = reward_models.tokenise(judge, model, tokenizer, turns)
    end = give_scores(judge.model.model_copy(update={"ids": ids}), model)
    return next(iter(end.scores.values())), end.tokens
