"""Waiting for what must become so, looking often; a test that waits in vain says for what."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], *, seconds: float = 240) -> None:
    """Return as soon as it is so.

    Raises:
        AssertionError: it never was.
    """
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"Waited {seconds} s in vain."
        time.sleep(0.05)
