"""Limits on open event streams: each holds a connection while its page is open."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from fastapi import Depends, Request

from studio.errors import UnavailableError
from studio.web.auth import identity
from studio.web.auth.identity import OptionalIdentity

MAX_STREAMS, MAX_STREAMS_PER_VIEWER = 1000, 100
"""In total, and per account; without accounts, per client address."""


class StreamLimiter:
    """Counts open streams by viewer. Only used on the event loop."""

    def __init__(self, most: int = MAX_STREAMS, most_of_one: int = MAX_STREAMS_PER_VIEWER) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, whose: str) -> Iterator[None]:
        """Reserve a slot for a stream while it is open.

        Raises:
            UnavailableError: Too many streams are open.

        """
        if self._open[whose] >= self._most_of_one or self._open.total() >= self._most:
            raise UnavailableError(
                "Too many live pages are open.", hint="Close some, or wait a moment."
            )
        self._open[whose] += 1
        try:
            yield
        finally:
            self._open[whose] -= 1
            self._open += Counter()  # Drops zero counts.


async def _hold_stream_slot(request: Request, visitor: OptionalIdentity) -> AsyncIterator[None]:
    limiter: StreamLimiter = request.app.state.viewers
    account = visitor.account_id if visitor else None
    viewer = f"account {account}" if account is not None else identity.client_address(request.scope)
    with limiter.hold(viewer):
        yield


StreamSlot = Depends(_hold_stream_slot)
"""The dependency of each event stream; the slot is released when the stream ends."""
