"""How many live streams may be open: each holds a connection for as long as its page is open."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from fastapi import Depends, Request

from studio.errors import UnavailableError
from studio.web.auth import identity
from studio.web.auth.identity import OptionalIdentity

MAX_STREAMS, MAX_STREAMS_PER_VIEWER = 1000, 100
"""In all, and of one person; without accounts, of one address."""


class StreamLimiter:
    """The streams that are open, and whose they are. Only the event loop asks."""

    def __init__(self, most: int = MAX_STREAMS, most_of_one: int = MAX_STREAMS_PER_VIEWER) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, whose: str) -> Iterator[None]:
        """Keep a place for a stream while it is open.

        Raises:
            UnavailableError: too many are.

        """
        if self._open[whose] >= self._most_of_one or self._open.total() >= self._most:
            raise UnavailableError(
                "Too many live views are open.", hint="Close some, or wait a moment."
            )
        self._open[whose] += 1
        try:
            yield
        finally:
            self._open[whose] -= 1
            self._open += Counter()  # Who has none left is forgotten.


async def _hold_stream_slot(request: Request, visitor: OptionalIdentity) -> AsyncIterator[None]:
    viewers: StreamLimiter = request.app.state.viewers
    account = visitor.account_id if visitor else None
    whose = f"account {account}" if account is not None else identity.client_address(request.scope)
    with viewers.hold(whose):
        yield


StreamSlot = Depends(_hold_stream_slot)
"""A stream of the studio's own asks for it; it is given back when the stream ends."""
