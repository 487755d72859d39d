"""Tokenise texts whose words have tags. Needs no torch."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from studio.intake.row_formats.tagged_words import place_words
from studio.training.data.labels import IGNORE_INDEX


def tokenise_words(
    text: str, words: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[int], list[int], int]:
    """Return the tokens of a text, the number of each token's word, and how many tokens there were.

    The number is `IGNORE_INDEX` for tokens that belong to no word, and for those of a word that is
    cut off. A token of several words belongs to the first one. The token that ends a text is kept.
    """
    read: Any = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, special = list(read["input_ids"]), read["special_tokens_mask"]
    places = place_words(text, words)
    ends = [end for _start, end in places]
    numbers = [IGNORE_INDEX] * len(ids)
    for token, (start, end) in enumerate(read["offset_mapping"]):
        # A token may begin with the space before its word.
        number = bisect_right(ends, start)
        if not special[token] and number < len(places) and places[number][0] < end:
            numbers[token] = number
    if len(ids) <= max_length:
        return ids, numbers, len(ids)
    kept = max_length - 1 if special[-1] else max_length
    rest = set(numbers[kept:])
    numbers = [IGNORE_INDEX if number in rest else number for number in numbers]
    closing = slice(len(ids) - (max_length - kept), None)
    return [*ids[:kept], *ids[closing]], [*numbers[:kept], *numbers[closing]], len(ids)


def find_places(numbers: Sequence[int], *, is_first: bool) -> dict[int, int]:
    """Return the token that says what a word is, by the word's number.

    That is its first token in a model that reads in both directions, and its last one in a model
    that has read only what comes before. A word without a token of its own is not there.
    """
    places: dict[int, int] = {}
    for token, number in enumerate(numbers):
        if number != IGNORE_INDEX and not (is_first and number in places):
            places[number] = token
    return places
