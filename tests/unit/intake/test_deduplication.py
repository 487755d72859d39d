"""Rows that were seen before are known again, in little memory."""

import tracemalloc

import pytest

from studio.intake.rows.deduplication import SeenHashes


def test_each_content_is_new_only_once() -> None:
    seen = SeenHashes()
    contents = [str(i % 30_000).encode() for i in range(70_000)]

    new = [seen.add(content) for content in contents]

    assert new == [i < 30_000 for i in range(70_000)]


@pytest.mark.slow
def test_stored_hash_uses_few_bytes() -> None:
    tracemalloc.start()
    try:
        seen = SeenHashes()
        for i in range(50_000):
            seen.add(str(i).encode())
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 50_000 * 14
