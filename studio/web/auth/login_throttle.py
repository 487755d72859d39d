"""Limits on failed sign-ins, against password guessing."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from studio.errors import TooManyRequestsError

WINDOW_SECONDS = 15 * 60
MAX_ENTRIES = 10_000
"""At most this many names and addresses are remembered."""

MAX_FOR_BOTH, MAX_FOR_ADDRESS, MAX_FOR_NAME = 10, 50, 200
"""Failures allowed in a window. The limit for a name alone is the highest: an attacker must not be
able to lock out its owner."""


@dataclass(slots=True)
class FailureCount:
    since: float
    failures: int = 0


class LoginThrottle:
    """Counts failed sign-ins by name and by address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], FailureCount] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def check_and_count(self, name: str, address: str) -> None:
        """Count an attempt as failed until `clear` is called, so that parallel attempts count too.

        Raises:
            TooManyRequestsError: Too many attempts have failed in the window.

        """
        name = name.strip().lower()
        limits = {
            (name, address): MAX_FOR_BOTH,
            ("", address): MAX_FOR_ADDRESS,
            (name, ""): MAX_FOR_NAME,
        }
        with self._lock:
            if any(self._count(key).failures >= limit for key, limit in limits.items()):
                raise TooManyRequestsError(
                    "Too many sign-in attempts.",
                    hint=f"Wait {WINDOW_SECONDS // 60} minutes, "
                    "or ask an administrator for a link.",
                )
            for key in limits:
                self._add(key, 1)
            while len(self._counts) > MAX_ENTRIES:
                self._counts.popitem(last=False)

    def clear(self, name: str, address: str) -> None:
        name = name.strip().lower()
        with self._lock:
            self._counts.pop((name, address), None)
            for key in (("", address), (name, "")):
                self._add(key, -1)

    def _add(self, key: tuple[str, str], failures: int) -> None:
        count = self._count(key)
        count.failures += failures
        self._counts[key] = count
        self._counts.move_to_end(key)

    def _count(self, key: tuple[str, str]) -> FailureCount:
        count = self._counts.get(key)
        if count is None or count.since < self._clock() - WINDOW_SECONDS:
            return FailureCount(self._clock())
        return count
