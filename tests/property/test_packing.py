"""Whatever rows there are, packing them loses none and overfills nothing."""

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from studio.protocols.tokenizer_service import PACKING_WINDOW_ROWS, packing_window
from studio.training.data import packing

LIMIT = 50
SIZES = st.lists(st.integers(1, LIMIT), max_size=80)


@given(SIZES)
def test_every_row_is_packed_once_within_limit(sizes: list[int]) -> None:
    packs = packing.best_fit(sizes, LIMIT)

    assert sorted(chain.from_iterable(packs)) == list(range(len(sizes)))
    assert all(0 < sum(sizes[place] for place in pack) <= LIMIT for pack in packs)


@given(SIZES)
def test_no_two_packs_fit_into_one(sizes: list[int]) -> None:
    filled = [sum(sizes[place] for place in pack) for pack in packing.best_fit(sizes, LIMIT)]

    assert all(one + other > LIMIT for one, other in combinations(filled, 2))


@given(SIZES)
def test_packs_and_rows_keep_file_order(sizes: list[int]) -> None:
    packs = packing.best_fit(sizes, LIMIT)

    assert [sorted(pack) for pack in packs] == packs
    assert sorted(packs) == packs


@given(st.dictionaries(st.integers(1, 3 * PACKING_WINDOW_ROWS), st.integers(1, LIMIT), max_size=60))
def test_each_window_is_packed_independently(rows: dict[int, int]) -> None:
    numbers = sorted(rows)
    sizes = [rows[number] for number in numbers]
    packs = packing.pack_rows(numbers, sizes, LIMIT)
    told = [[numbers[place] for place in pack] for pack in packs]

    alone = []
    for start in range(1, 3 * PACKING_WINDOW_ROWS, PACKING_WINDOW_ROWS):
        some = [number for number in numbers if number in packing_window(start)]
        fitted = packing.best_fit([rows[number] for number in some], LIMIT)
        alone += [[some[place] for place in pack] for pack in fitted]
    assert told == alone
