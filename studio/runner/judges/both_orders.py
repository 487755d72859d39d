"""Ask a judge about a pair of answers in both orders."""

import secrets
from collections.abc import Callable, Iterator, Sequence

from studio.evaluation import judge_prompts
from studio.protocols.judging import Pair, PairResult

MAX_TOKENS = 512
"""Tokens of a reply; a sentence or two are asked for."""

Judge = Callable[[Sequence[Pair]], Iterator[PairResult]]
"""Yields the results of pairs in any order."""


def ask_both_orders(pair: Pair, ask: Callable[[str], str]) -> PairResult:
    """Ask a judge twice about a pair, with the answers in both orders."""
    replies: list[str] = []
    for answers in ((pair.base, pair.tuned), (pair.tuned, pair.base)):
        fence = secrets.token_hex(8)
        question = judge_prompts.build_question(pair.prompt, pair.reference, answers, fence)
        replies.append(ask(question))
    return PairResult(
        position=pair.position,
        base_first=judge_prompts.read_choice(replies[0]),
        tuned_first=judge_prompts.read_choice(replies[1]),
        base_first_reply=replies[0],
        tuned_first_reply=replies[1],
    )
