"""Stop cleanly on request: at once while preparing, after the current step while training."""

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
    """The run was asked to stop. Not an `Exception`, so that no handler on the way catches it."""


class StopHandler:
    """Holds a stop request until the run reaches a point where stopping is safe."""

    def __init__(self) -> None:
        self.requested: RunCommand | None = None
        self.step = 0
        """The last completed step; in a resumed run, initially its checkpoint's step."""
        self.has_interrupted = False
        """Whether something was interrupted: later failures are consequences of that. A package
        that was being imported may swallow the request and be unusable from then on."""
        self._file: Path | None = None
        self._honoured = _NO_REQUEST

    def install(self, file: Path) -> None:
        """Treat SIGTERM and SIGINT as the request in the file, or else as a cancel."""
        self._file = file
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)

    def check(self) -> None:
        """Stop here if a cancel was requested.

        Raises:
            StopRequested: a cancel was requested.

        """
        self._raise_if_requested(frozenset({"cancel"}))

    @contextmanager
    def stopping_allowed(self) -> Iterator[None]:
        """Allow stopping anywhere inside: nothing in it is worth finishing."""
        with self._honouring(_ANY_REQUEST):
            yield

    @contextmanager
    def cancelling_allowed(self) -> Iterator[None]:
        """Allow only a cancel inside: the trained model is about to be saved."""
        with self._honouring(frozenset({"cancel"})):
            yield

    @contextmanager
    def stopping_deferred(self) -> Iterator[None]:
        """Defer any stop until right after the block."""
        with self._honouring(_NO_REQUEST):
            yield

    @contextmanager
    def _honouring(self, commands: frozenset[RunCommand]) -> Iterator[None]:
        before, self._honoured = self._honoured, commands
        try:
            self._raise_if_requested(commands)
            yield
        finally:
            self._honoured = before
        self._raise_if_requested(before)

    def _raise_if_requested(self, commands: frozenset[RunCommand]) -> None:
        # A resumed run can only keep its model once the checkpoint has been loaded.
        if self.requested in commands and not (self.requested == "keep" and self.step):
            self.has_interrupted = True
            raise StopRequested

    def _handle_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = self._read_request()
        self._raise_if_requested(self._honoured)

    def _read_request(self) -> RunCommand:
        try:
            content = self._file.read_text(encoding="utf-8").strip() if self._file else ""
        except FileNotFoundError:
            content = ""
        return next((command for command in get_args(RunCommand) if command == content), "cancel")
