"""Which rows share an example: several whole ones, where no more than one would fit.

Rows are packed with others near them in their file alone, so that whoever looks at one row need not
read all others to say which it shares an example with. Of lengths only: needs no torch.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import groupby

from studio.protocols.tokenizer_service import packing_window


def pack_rows(numbers: Sequence[int], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Return the places of rows that share an example, for all rows of a file that are learnt.

    Within an example, and from one to the next, they keep the order they come in.
    """
    found: list[list[int]] = []
    for _, some in groupby(
        range(len(numbers)), key=lambda place: packing_window(numbers[place]).start
    ):
        places = list(some)
        packs = best_fit([sizes[place] for place in places], limit)
        found += [[places[one] for one in pack] for pack in packs]
    return found


def best_fit(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Put sizes together, none of them above a limit, so that no sum is: the largest first.

    Each goes where it leaves the least room, and where none has room it begins anew; so no two
    that come of it would fit into one.
    """
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        size = sizes[place]
        best = bisect_left(rooms, (size, 0))
        if best < len(rooms):
            room, pack = rooms.pop(best)
        else:
            room, pack = limit, len(packs)
            packs.append([])
        packs[pack].append(place)
        insort(rooms, (room - size, pack))
    return sorted(sorted(pack) for pack in packs)
