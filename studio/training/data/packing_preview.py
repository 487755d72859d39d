"""Find the rows that share a packed example with a given row. Needs no torch."""

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
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, label_rows
from studio.training.data.rows import TrainingRow, to_training_row, validation_indices

_CHUNK_ROWS = 50
"""Rows measured at a time: all tokens of a window at once would take too much memory."""

_MAX_CPU_SECONDS = 3.0
"""CPU seconds after which measuring a window is abandoned."""

_TOO_LONG = "The rows near it are too long to measure here."


def measure_rows(asked: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> RowLengths:
    """Return the lengths of the rows that a row may be packed with."""
    assert asked.window is not None  # noqa: S101 -- asked for these
    learnt = _trained_numbers(asked.window)
    share, seed = asked.window.share, asked.window.seed
    held = (
        {learnt[place] for place in validation_indices(len(learnt), share, seed)}
        if share
        else set()
    )
    try:
        found = dict(_measure_each(asked, tokenizer))
    except TrainingError as error:
        return RowLengths(
            trouble="The rows that share an example with this one could not be determined. "
            f"{error.message}"
        )
    kept = {number: one for number, one in found.items() if number not in held}
    return RowLengths(
        numbers=list(kept),
        tokens=[tokens for tokens, _ in kept.values()],
        firsts=[first for _, first in kept.values()],
        held=sorted(held & found.keys()),
    )


def rows_packed_with(asked: TokenizerRequest, sizes: RowLengths) -> dict[int, int]:
    """Return the tokens of each row in the given row's example, including itself, by row number.

    Empty if the row is left out.
    """
    most = asked.max_length
    every = zip(sizes.numbers, sizes.tokens, sizes.firsts, strict=True)
    kept = [(number, min(tokens, most)) for number, tokens, first in every if 0 < first < most]
    numbers = [number for number, _ in kept]
    packs = bin_packing.pack_rows(numbers, [tokens for _, tokens in kept], most)
    own = next((pack for pack in packs if asked.number in (numbers[one] for one in pack)), [])
    return dict(kept[one] for one in own)


def read_rows(asked: TokenizerRequest, numbers: Collection[int]) -> list[TrainingRow]:
    """Return rows of a window by their numbers."""
    return [row for number, row in _window_rows(asked) if number in numbers and row is not None]


def load_template(
    asked: TokenizerRequest, rows: list[TrainingRow], tokenizer: PreTrainedTokenizerBase
) -> ChatTemplate | None:
    """Return the chat template for the rows; None if they are all text."""
    if all(row.text is not None for row in rows):
        return None
    chat_templates.set_chat_template(tokenizer, asked.chat_template)
    return ChatTemplate(tokenizer)


def _trained_numbers(window: PackingWindow) -> range | list[int]:
    """Return the numbers of all rows in the file that are trained on."""
    if not window.judged:
        return range(1, window.rows + 1)
    with Path(window.path).open("rb") as lines:
        every = (json.loads(line).get("label") for line in lines)
        return [number for number, label in enumerate(every, 1) if label is not False]


def _window_rows(asked: TokenizerRequest) -> Iterator[tuple[int, TrainingRow | None]]:
    assert asked.window is not None  # noqa: S101 -- asked for these
    with Path(asked.window.path).open("rb") as file:
        file.seek(asked.window.start)
        for number, line in zip(packing_window(asked.number), file, strict=False):
            yield number, to_training_row(json.loads(line), number, "training")


def _measure_each(
    asked: TokenizerRequest, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each row's number, its token count, and the index of the first token trained on."""
    began = time.process_time()
    rows = (row for _, row in _window_rows(asked) if row is not None)
    writer: ChatTemplate | None = None
    for first in rows:
        some = [first, *islice(rows, _CHUNK_ROWS - 1)]
        writer = writer or load_template(asked, some, tokenizer)
        for row, found in zip(some, label_rows(some, writer, tokenizer), strict=True):
            yield row.number, (len(found.ids), _first_trained(found))
        if time.process_time() - began > _MAX_CPU_SECONDS:
            raise TrainingError("bad_row", _TOO_LONG)


def _first_trained(found: LabelledRow) -> int:
    places = (place for place, label in enumerate(found.labels) if place and label != IGNORE_INDEX)
    return next(chain(places, [0]))
