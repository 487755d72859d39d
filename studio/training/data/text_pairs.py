"""Read rows as pairs of texts, with the prompts that are written before them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.protocols.tokenizer_service import PromptTokens, TokenizerRequest
from studio.recipe.base import Recipe
from studio.training.data import prompt_answer
from studio.training.data.rows import TrainingRow


def adapt_rows(recipe: Recipe, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Return rows as pairs of texts with their prompts, and as many negatives as a recipe reads.

    The last answer of a conversation matches what comes before it.

    Raises:
        TrainingError: a row has no two texts.

    """
    query, passage = recipe.pair_prompts
    pairs, adapted = [as_pair(row) for row in rows], list[TrainingRow]()
    if recipe.fills_negatives:
        pairs = fill_negatives(pairs, recipe.negatives)
    for row in pairs:
        anchor, *others = row.pair[: 2 + recipe.negatives]
        pair = (query + anchor, *(passage + other for other in others))
        adapted.append(replace(row, pair=pair))
    return adapted


def as_pair(row: TrainingRow) -> TrainingRow:
    """Return a row as a pair of texts.

    Raises:
        TrainingError: it has no two texts.

    """
    if row.pair:
        return row
    pair = prompt_answer.split_row(row) if row.text is None else ("", "")
    if not all(text.strip() for text in pair):
        raise TrainingError(
            "bad_row",
            f"{row.location} has no two texts that belong together.",
            hint="Choose a dataset of pairs, or of questions with answers.",
        )
    return replace(row, pair=pair)


def fill_negatives(rows: Sequence[TrainingRow], count: int) -> list[TrainingRow]:
    """Return rows with as many texts that do not match: the second texts of other rows.

    The same rows get the same texts. None of them matches an equal first text. Rows with scores
    stay as they are.
    """
    matching: dict[str, set[str]] = {}
    for row in rows:
        matching.setdefault(row.pair[0], set()).add(row.pair[1])
    texts = list(dict.fromkeys(row.pair[1] for row in rows if row.score is None))
    rng = random.Random(0)  # noqa: S311 -- no secret
    filled: list[TrainingRow] = []
    for row in rows:
        own = row.pair[2 : 2 + count]
        if row.score is None and len(own) < count:
            drawn = rng.sample(texts, min(len(texts), 2 * count))
            others = [text for text in drawn if text not in matching[row.pair[0]] | {*own}]
            row = replace(row, pair=(*row.pair[:2], *own, *others[: count - len(own)]))  # noqa: PLW2901 -- the same row
        filled.append(row)
    return filled


def tokenise_pairs(
    pairs: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Return of each pair how many tokens it has, its tokens, and to which text each belongs.

    The longer text of a pair is cut first.
    """
    if not pairs:
        return [], [], []
    firsts, seconds = ([pair[place] for pair in pairs] for place in (0, 1))
    whole: Any = tokenizer(firsts, seconds)
    sizes = list(map(len, whole["input_ids"]))
    found: Any = tokenizer(firsts, seconds, truncation=True, max_length=max_length)
    ids: list[list[int]] = found["input_ids"]
    types: list[list[int]] = found.get("token_type_ids") or [[0] * len(one) for one in ids]
    return sizes, ids, types


def tokenise_texts(request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    """Return the tokens of the texts of a request, each after its first text, if it has one."""
    if not request.first:
        found = prompt_answer.cut_texts(request.texts, tokenizer, request.max_length)
        return PromptTokens(ids=[], stops=[], texts=found)
    pairs = [(request.first, text) for text in request.texts]
    _sizes, ids, types = tokenise_pairs(pairs, tokenizer, request.max_length)
    return PromptTokens(ids=[], stops=[], texts=ids, types=types)


def text_key(text: str) -> int:
    """Return a number that is equal for equal texts alone."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
