"""The rows that a row shares its example with, where rows are packed. No torch."""

import json
import time
from collections.abc import Collection, Iterator
from itertools import chain, islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.protocols.tokenizer_service import (
    PackingWindow,
    RowLengths,
    TokenizerRequest,
    packing_window,
)
from studio.training.data import bin_packing, chat_templates
from studio.training.data.chat_templates import Template
from studio.training.data.labels import IGNORED, Labelled, labelled
from studio.training.data.rows import Row, held_back, taught

_AT_ONCE = 50
"""Rows that are measured together: all tokens of a window at once would be too much to hold."""

_PATIENCE = 3.0
"""Seconds of a processor after which a window is left alone."""

_LONG = "The rows near it are too long to be measured here."


def measure(asked: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> RowLengths:
    """Return how long the rows are that a row may be packed with."""
    assert asked.window is not None  # noqa: S101 -- asked for these
    learnt = _learnt(asked.window)
    share, seed = asked.window.share, asked.window.seed
    held = {learnt[place] for place in held_back(len(learnt), share, seed)} if share else set()
    try:
        found = dict(_measured(asked, tokenizer))
    except TrainingError as error:
        return RowLengths(
            trouble=f"Which rows share an example with this one cannot be said. {error.message}"
        )
    kept = {number: one for number, one in found.items() if number not in held}
    return RowLengths(
        numbers=list(kept),
        tokens=[tokens for tokens, _ in kept.values()],
        firsts=[first for _, first in kept.values()],
        held=sorted(held & found.keys()),
    )


def beside(asked: TokenizerRequest, sizes: RowLengths) -> dict[int, int]:
    """Return the rows of a row's example by their numbers, itself among them: tokens of each.

    Empty where it is left out.
    """
    most = asked.max_length
    every = zip(sizes.numbers, sizes.tokens, sizes.firsts, strict=True)
    kept = [(number, min(tokens, most)) for number, tokens, first in every if 0 < first < most]
    numbers = [number for number, _ in kept]
    packs = bin_packing.packed(numbers, [tokens for _, tokens in kept], most)
    own = next((pack for pack in packs if asked.number in (numbers[one] for one in pack)), [])
    return dict(kept[one] for one in own)


def read(asked: TokenizerRequest, numbers: Collection[int]) -> list[Row]:
    """Return rows of a window by their numbers."""
    return [row for number, row in _rows(asked) if number in numbers and row is not None]


def template(
    asked: TokenizerRequest, rows: list[Row], tokenizer: PreTrainedTokenizerBase
) -> Template | None:
    """Return what writes the rows; None where there is only text."""
    if all(row.text is not None for row in rows):
        return None
    chat_templates.install(tokenizer, asked.chat_template)
    return Template(tokenizer)


def _learnt(window: PackingWindow) -> range | list[int]:
    """Return the numbers of all rows that are learnt, wherever in the file they stand."""
    if not window.judged:
        return range(1, window.rows + 1)
    with Path(window.path).open("rb") as lines:
        every = (json.loads(line).get("label") for line in lines)
        return [number for number, label in enumerate(every, 1) if label is not False]


def _rows(asked: TokenizerRequest) -> Iterator[tuple[int, Row | None]]:
    assert asked.window is not None  # noqa: S101 -- asked for these
    with Path(asked.window.path).open("rb") as file:
        file.seek(asked.window.start)
        for number, line in zip(packing_window(asked.number), file, strict=False):
            yield number, taught(json.loads(line), number, "training")


def _measured(
    asked: TokenizerRequest, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each row's number, its tokens, and where the first stands that is learnt."""
    began = time.process_time()
    rows = (row for _, row in _rows(asked) if row is not None)
    writer: Template | None = None
    for first in rows:
        some = [first, *islice(rows, _AT_ONCE - 1)]
        writer = writer or template(asked, some, tokenizer)
        for row, found in zip(some, labelled(some, writer, tokenizer), strict=True):
            yield row.number, (len(found.ids), _first(found))
        if time.process_time() - began > _PATIENCE:
            raise TrainingError("bad_row", _LONG)


def _first(found: Labelled) -> int:
    places = (place for place, label in enumerate(found.labels) if place and label != IGNORED)
    return next(chain(places, [0]))
