"""How the worker waits for its next tick: asleep, until another process has something for it."""

import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Engine

from studio.db.session import CommitWatcher, wait_for_commits

TICK_SECONDS = 0.2
"""The time between ticks while something runs."""

SETTLE_SECONDS = 2.0
"""How long that goes on after the last has ended, which may leave work behind."""

LOOK_SECONDS = 30.0
"""How often to look for work that nothing has announced."""

POLL_SECONDS = 0.02
"""The least time between ticks, however much is committed; and how often commits are polled where
nothing announces them, so that a submitted run does not wait for a tick."""


class Waiter:
    """Waits for the next tick. Used by one thread."""

    def __init__(
        self, changes: CommitWatcher, stop: threading.Event, stopped: socket.socket
    ) -> None:
        self._changes = changes
        self._stop = stop
        self._stopped = stopped
        """Readable once `stop` is set."""
        self._woken_at = float("-inf")
        self._settled_at = float("-inf")
        self._looked_at = time.monotonic()
        self.is_due = True
        changes.has_new_commit()  # The first tick looks at everything.

    def wait(
        self,
        sources: Iterable[socket.socket | None],
        *,
        is_busy: bool,
        until: float,
        due_at: float = float("inf"),
    ) -> None:
        """Wait for a commit, a readable source or a stop, at most `until`; less if busy.

        A commit since the last wait ends this one. Afterwards, `is_due` says whether there may be
        something to do: not if merely time has passed, before `due_at`, and nothing was going on.
        """
        self.is_due = True
        if is_busy:
            self._settled_at = time.monotonic() + SETTLE_SECONDS
        is_settled = time.monotonic() >= self._settled_at
        if not is_settled:
            until = min(until, time.monotonic() + TICK_SECONDS)
            if self._changes.bell is None:
                self._changes.has_new_commit()  # Discard commits by this process.
        if self._stop.wait(max(0.0, self._woken_at + POLL_SECONDS - time.monotonic())):
            return
        due_at = min(due_at, self._looked_at + LOOK_SECONDS)
        is_woken = self._sleep([one for one in sources if one is not None], min(until, due_at))
        self._woken_at = time.monotonic()
        self.is_due = is_woken or not is_settled or self._woken_at >= due_at
        if self.is_due:
            self._looked_at = self._woken_at

    def _sleep(self, sources: list[socket.socket], until: float) -> bool:
        bell = self._changes.bell
        with selectors.DefaultSelector() as selector:
            for source in (self._stopped, *([bell] if bell else []), *sources):
                selector.register(source, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                ready = selector.select(left if bell else min(left, POLL_SECONDS))
                is_new = self._changes.has_new_commit()
                if is_new or any(key.fileobj is not bell for key, _ in ready):
                    return True
        return self._changes.has_new_commit()


@contextmanager
def open_waiter(engine: Engine, stop: threading.Event) -> Iterator[Waiter]:
    """Open a waiter, for the calling thread, that ends each wait once `stop` is set."""
    stopped, ours = socket.socketpair()

    def report_stop() -> None:
        stop.wait()
        with suppress(OSError):  # The waiter is closed.
            ours.send(b"1")

    threading.Thread(target=report_stop, name="stop", daemon=True).start()
    with wait_for_commits(engine) as changes, stopped, ours:
        yield Waiter(changes, stop, stopped)
