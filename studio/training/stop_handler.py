"""Leaving in good order when asked to: at once while preparing, after the step while training."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import get_args

from studio.protocols.run_dir import RunCommand

_ANY_REQUEST: frozenset[RunCommand] = frozenset(get_args(RunCommand))
_NO_REQUEST: frozenset[RunCommand] = frozenset()


class StopRequested(BaseException):
    """The run was asked to stop. Not an `Exception`, so that nothing on the way swallows it."""


class StopHandler:
    """A request to stop, kept until a place is reached where leaving breaks nothing."""

    def __init__(self) -> None:
        self.requested: RunCommand | None = None
        self.step = 0
        """The last step that was done whole; of a resumed run, first that of its checkpoint."""
        self.has_interrupted = False
        """Whether something was broken off: what fails after that, fails of it. A package that was
        just being loaded may swallow the request, and be unusable from then on."""
        self._file: Path | None = None
        self._honoured = _NO_REQUEST

    def install(self, file: Path) -> None:
        """Take SIGTERM and SIGINT as requests from now on: what the file says, or to cancel."""
        self._file = file
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)

    def check(self) -> None:
        """Leave here if asked to cancel.

        Raises:
            StopRequested: somebody asked.

        """
        self._raise_if_requested(frozenset({"cancel"}))

    @contextmanager
    def stopping_allowed(self) -> Iterator[None]:
        """Leave anywhere inside: nothing in here is worth finishing."""
        with self._honouring(_ANY_REQUEST):
            yield

    @contextmanager
    def cancelling_allowed(self) -> Iterator[None]:
        """Leave anywhere inside, but only to cancel: what was learnt is about to be saved."""
        with self._honouring(frozenset({"cancel"})):
            yield

    @contextmanager
    def stopping_deferred(self) -> Iterator[None]:
        """Leave nowhere inside, but right after it."""
        with self._honouring(_NO_REQUEST):
            yield

    @contextmanager
    def _honouring(self, words: frozenset[RunCommand]) -> Iterator[None]:
        before, self._honoured = self._honoured, words
        try:
            self._raise_if_requested(words)
            yield
        finally:
            self._honoured = before
        self._raise_if_requested(before)

    def _raise_if_requested(self, words: frozenset[RunCommand]) -> None:
        # What a resumed run has learnt can be kept only once it is loaded.
        if self.requested in words and not (self.requested == "keep" and self.step):
            self.has_interrupted = True
            raise StopRequested

    def _handle_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = self._read_request()
        self._raise_if_requested(self._honoured)

    def _read_request(self) -> RunCommand:
        try:
            told = self._file.read_text(encoding="utf-8").strip() if self._file else ""
        except FileNotFoundError:
            told = ""
        return next((word for word in get_args(RunCommand) if word == told), "cancel")
