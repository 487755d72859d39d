"""Answers that follow a grammar: before each token, those that would break it are ruled out."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerBase

from studio.errors import InvalidError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""How JSON is written. With free white space, a small model may write nothing else."""


class Constraint:
    """Where an answer is in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        stopped: bool = self._matcher.is_stopped()
        return stopped

    @property
    def failure(self) -> str:
        """Why the grammar could not be followed to its end, or ""."""
        error: str = self._matcher.get_error()
        return error.splitlines()[0] if error else ""

    def rule_out(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores of a step, one row, without tokens that would break the grammar."""
        if self.is_complete:
            return scores
        # 0 for tokens that are ruled out; the model may have more rows than the tokenizer.
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        ruled_out = allowed.to(scores.device)[: scores.shape[-1]] == 0
        return scores.masked_fill(ruled_out, float("-inf"))

    def add(self, token: int) -> None:
        """Follow the token that was chosen."""
        if not self.is_complete:
            self._matcher.consume_token(token)


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of JSON that follows a schema."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE)


def start_constraint(
    grammar: str, stops: Sequence[int], tokenizer: PreTrainedTokenizerBase, vocabulary: int
) -> Constraint:
    """Return the constraint of an answer that has no tokens yet.

    `vocabulary` is how many scores the model gives for a token.

    Raises:
        InvalidError: the grammar has a schema that is wrong or uses what is not supported, or the
            tokenizer's tokens cannot be mapped to text.

    """
    reader = _reader(tokenizer, tuple(stops), vocabulary)
    is_wrong, findings = LLMatcher.validate_grammar_with_warnings(grammar, reader)
    if is_wrong:
        reason = "; ".join(findings)
        raise InvalidError(
            f"This JSON schema cannot be followed: {reason}.",
            hint="Correct the schema, or leave out what is not supported.",
        )
    return Constraint(LLMatcher(reader, grammar))


def marked_tokens(
    stops: Sequence[int], tokenizer: PreTrainedTokenizerBase, vocabulary: int
) -> dict[str, int]:
    """Return the tokens that a grammar names by their IDs, as they are not made of text.

    Besides special tokens, these are added ones that look like them, such as `<tool_call>`.
    """
    reader = _reader(tokenizer, tuple(stops), vocabulary)
    added: dict[str, int] = tokenizer.get_added_vocab()
    return {text: token for text, token in added.items() if reader.is_special_token(token)}


@lru_cache(maxsize=2)
def _reader(
    tokenizer: PreTrainedTokenizerBase, stops: tuple[int, ...], vocabulary: int
) -> LLTokenizer:
    """Return what maps tokens to text; large vocabularies take a second."""
    # -1 stands for no token.
    ends = [stop for stop in stops if stop >= 0] or tokenizer.eos_token_id
    try:
        return from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=ends)
    except ValueError as error:
        raise InvalidError(
            f"This model's tokenizer cannot be held to a JSON schema: {error}.",
            hint="Leave out response_format and tools, and describe the format in the messages.",
        ) from error
