"""Choose which rows share an example: whole rows, as many as fit.

Rows are only packed with others near them in their file, so that previewing one row does not
require reading all of them. Works on lengths only and needs no torch.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import groupby

from studio.protocols.tokenizer_service import packing_window


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
