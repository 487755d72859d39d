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
        self.asked: RunCommand | None = None
        self.step = 0
        """The last step that was done whole; of a resumed run, first that of its checkpoint."""
        self.has_interrupted = False
        """Whether something was broken off: what fails after that, fails of it. A package that was
        just being loaded may swallow the request, and be unusable from then on."""
        self._file: Path | None = None
        self._leaves_for = _NO_REQUEST

    def listen(self, file: Path) -> None:
        """Take SIGTERM and SIGINT as requests from now on: what the file says, or to cancel."""
        self._file = file
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGINT, self._hear)

    def check(self) -> None:
        """Leave here if asked to cancel.

        Raises:
            StopRequested: somebody asked.

        """
        self._leave_for(frozenset({"cancel"}))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Leave anywhere inside: nothing in here is worth finishing."""
        with self._leaving(_ANY_REQUEST):
            yield

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Leave anywhere inside, but only to cancel: what was learnt is about to be saved."""
        with self._leaving(frozenset({"cancel"})):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave nowhere inside, but right after it."""
        with self._leaving(_NO_REQUEST):
            yield

    @contextmanager
    def _leaving(self, words: frozenset[RunCommand]) -> Iterator[None]:
        before, self._leaves_for = self._leaves_for, words
        try:
            self._leave_for(words)
            yield
        finally:
            self._leaves_for = before
        self._leave_for(before)

    def _leave_for(self, words: frozenset[RunCommand]) -> None:
        # What a resumed run has learnt can be kept only once it is loaded.
        if self.asked in words and not (self.asked == "keep" and self.step):
            self.has_interrupted = True
            raise StopRequested

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self.asked = self._read()
        self._leave_for(self._leaves_for)

    def _read(self) -> RunCommand:
        try:
            told = self._file.read_text(encoding="utf-8").strip() if self._file else ""
        except FileNotFoundError:
            told = ""
        return next((word for word in get_args(RunCommand) if word == told), "cancel")
