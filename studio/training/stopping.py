"""Leaving in good order when asked to: at once while preparing, after the step while training."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequested(BaseException):
    """The run was asked to stop. Not an `Exception`, so that nothing on the way swallows it."""


class Stop:
    """A request to stop, kept until a place is reached where leaving breaks nothing."""

    def __init__(self) -> None:
        self.requested = False
        self.step = 0
        """The last step that was done whole."""
        self._may_leave = False

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as requests from now on."""
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGINT, self._hear)

    def check(self) -> None:
        """Leave here if asked to.

        Raises:
            StopRequested: somebody asked.

        """
        if self.requested:
            raise StopRequested

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Leave anywhere inside: nothing in here is worth finishing."""
        with self._leaving(allowed=True):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave nowhere inside, but right after it."""
        with self._leaving(allowed=False):
            yield

    @contextmanager
    def _leaving(self, *, allowed: bool) -> Iterator[None]:
        before, self._may_leave = self._may_leave, allowed
        try:
            if allowed:
                self.check()
            yield
        finally:
            self._may_leave = before
        if before:
            self.check()

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True
        if self._may_leave:
            raise StopRequested
