"""Choose which rows share an example, and find those that share it with a given row.

Whole rows, as many as fit. Rows are only packed with others near them in their file, so that
previewing one row does not require reading all of them. Works on lengths only and needs no torch.
"""

import json
import time
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import BinaryIO

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.intake.rows.validation_rows import validation_indices
from studio.protocols.tokenizer_service import (
    PackingWindow,
    RowLengths,
    TokenizerRequest,
    packing_window,
)
from studio.training.data import chat_templates
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, label_rows
from studio.training.data.rows import TrainingRow, is_rated_bad, to_training_row


def pack_rows(numbers: Sequence[int], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Return the indices of rows that share an example, for all rows that are trained on.

    Rows keep their order within an example and between examples.
    """
    packed: list[list[int]] = []
    for _, group in groupby(
        range(len(numbers)), key=lambda place: packing_window(numbers[place]).start
    ):
        indices = list(group)
        packs = best_fit([sizes[index] for index in indices], limit)
        packed += [[indices[position] for position in pack] for pack in packs]
    return packed


def best_fit(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Pack sizes into bins of a limit that no single size exceeds: best fit, the largest first.

    Each size goes into the bin with the least room left for it, or into a new bin if none has room;
    so no two resulting bins could be merged.
    """
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for index in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        size = sizes[index]
        best = bisect_left(rooms, (size, 0))
        if best < len(rooms):
            room, pack = rooms.pop(best)
        else:
            room, pack = limit, len(packs)
            packs.append([])
        packs[pack].append(index)
        insort(rooms, (room - size, pack))
    return sorted(sorted(pack) for pack in packs)


_CHUNK_ROWS = 50
"""Rows measured at a time: all tokens of a window at once would take too much memory."""

_MAX_CPU_SECONDS = 3.0
"""CPU seconds after which measuring a window is abandoned."""

_TOO_LONG = "The rows near it are too long to measure here."


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """The rows that a row may be packed with."""

    file: BinaryIO
    """The file of the split, as a process that opens no path has it."""
    sizes: RowLengths


def open_rows(request: TokenizerRequest) -> BinaryIO | None:
    """Open the file with the rows that a row may be packed with; None if it is not packed."""
    return Path(request.window.path).open("rb") if request.window else None


def measure_rows(
    request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase, file: BinaryIO
) -> RowLengths:
    """Return the lengths of the rows that a row may be packed with."""
    assert request.window is not None  # noqa: S101 -- asked for these
    trained_numbers = _trained_numbers(request.window, file)
    share, seed = request.window.share, request.window.seed
    held_out = (
        {trained_numbers[index] for index in validation_indices(len(trained_numbers), share, seed)}
        if share
        else set()
    )
    try:
        measured = dict(_measure_each(request, tokenizer, file))
    except TrainingError as error:
        return RowLengths(
            trouble="The rows that share an example with this one could not be determined. "
            f"{error.message}"
        )
    training_rows = {
        number: lengths for number, lengths in measured.items() if number not in held_out
    }
    return RowLengths(
        numbers=list(training_rows),
        tokens=[tokens for tokens, _ in training_rows.values()],
        firsts=[first for _, first in training_rows.values()],
        held=sorted(held_out & measured.keys()),
    )


def rows_packed_with(request: TokenizerRequest, sizes: RowLengths) -> dict[int, int]:
    """Return the tokens of each row in the given row's example, including itself, by row number.

    Empty if the row is left out.
    """
    limit = request.max_length
    row_lengths = zip(sizes.numbers, sizes.tokens, sizes.firsts, strict=True)
    usable = [
        (number, min(tokens, limit)) for number, tokens, first in row_lengths if 0 < first < limit
    ]
    numbers = [number for number, _ in usable]
    packs = pack_rows(numbers, [tokens for _, tokens in usable], limit)
    own_pack = next(
        (pack for pack in packs if request.number in (numbers[index] for index in pack)), []
    )
    return dict(usable[index] for index in own_pack)


def read_rows(
    request: TokenizerRequest, numbers: Collection[int], file: BinaryIO
) -> list[TrainingRow]:
    """Return rows of a window by their numbers."""
    rows = _window_rows(request, file)
    return [row for number, row in rows if number in numbers and row is not None]


def load_template(
    request: TokenizerRequest, rows: list[TrainingRow], tokenizer: PreTrainedTokenizerBase
) -> ChatTemplate | None:
    """Return the chat template for the rows; None if they are all text."""
    if all(row.text is not None for row in rows):
        return None
    chat_templates.set_chat_template(tokenizer, request.chat_template)
    return chat_templates.load(tokenizer)


def _trained_numbers(window: PackingWindow, file: BinaryIO) -> range | list[int]:
    """Return the numbers of all rows in the file that are trained on."""
    if not window.judged:
        return range(1, window.rows + 1)
    file.seek(0)
    labels = (json.loads(line).get("label") for line in file)
    return [number for number, label in enumerate(labels, 1) if label is not False]


def _window_rows(
    request: TokenizerRequest, file: BinaryIO
) -> Iterator[tuple[int, TrainingRow | None]]:
    assert request.window is not None  # noqa: S101 -- asked for these
    file.seek(request.window.start)
    for number, line in zip(packing_window(request.number), file, strict=False):
        row = to_training_row(json.loads(line), number, "training")
        yield number, None if is_rated_bad(row) else row


def _measure_each(
    request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase, file: BinaryIO
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each row's number, its token count, and the index of the first token trained on."""
    started_at = time.process_time()
    rows = (row for _, row in _window_rows(request, file) if row is not None)
    template: ChatTemplate | None = None
    for first in rows:
        chunk = [first, *islice(rows, _CHUNK_ROWS - 1)]
        template = template or load_template(request, chunk, tokenizer)
        for row, labelled in zip(chunk, label_rows(chunk, template, tokenizer), strict=True):
            yield row.number, (len(labelled.ids), _first_trained(labelled))
        if time.process_time() - started_at > _MAX_CPU_SECONDS:
            raise TrainingError("bad_row", _TOO_LONG)


def _first_trained(labelled: LabelledRow) -> int:
    indices = (
        index for index, label in enumerate(labelled.labels) if index and label != IGNORE_INDEX
    )
    return next(chain(indices, [0]))
