"""A service of the worker that is looked after while a test asks it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ticking(tick: Callable[[], object]) -> Iterator[None]:
    """Call a service's tick again and again, as the worker's loop does."""
    stop = threading.Event()

    def tend() -> None:
        while not stop.wait(0.02):
            tick()

    thread = threading.Thread(target=tend)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
