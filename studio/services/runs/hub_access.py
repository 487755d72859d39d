"""Whether a model can be downloaded from the hub, as checks before a start ask.

The hub is contacted only while a request is handled, with the settings that the web process
provides. A check waits a few seconds at most and its result is cached, because a form checks after
every change.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from studio.errors import StudioError
from studio.settings import Settings

if TYPE_CHECKING:
    from studio.network.hub_client import Hub

_MAX_CACHED = 500


@dataclass(slots=True)
class HubAccessCache:
    """Cache of the hub's recent answers: why a model cannot be downloaded, or None."""

    granted_seconds: float = 300.0
    refused_seconds: float = 5.0
    """Refusals are cached only briefly, so that a retry contacts the hub again."""
    _cache: dict[tuple["Hub", str], tuple[float, StudioError | None]] = field(default_factory=dict)
    """With the time on the monotonic clock at which the answer expires."""

    def find_error(self, hub: "Hub", name: str) -> StudioError | None:
        expires_at, error = self._cache.get((hub, name), (0.0, None))
        if time.monotonic() < expires_at:
            return error
        error = _request_access(hub, name)
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        valid_seconds = self.refused_seconds if error else self.granted_seconds
        self._cache[hub, name] = time.monotonic() + valid_seconds, error
        return error


_HUB_CHECKS: ContextVar[tuple[Settings, HubAccessCache] | None] = ContextVar("asking", default=None)


@contextmanager
def enable_hub_checks(settings: Settings, access_cache: HubAccessCache) -> Iterator[None]:
    """Let checks inside the block contact the hub with these settings."""
    token = _HUB_CHECKS.set((settings, access_cache))
    try:
        yield
    finally:
        _HUB_CHECKS.reset(token)


def current() -> tuple[Settings, HubAccessCache] | None:
    """Return the settings and the cache with which to contact the hub; None if no check may."""
    return _HUB_CHECKS.get()


def _request_access(hub: "Hub", name: str) -> StudioError | None:
    from studio.services.models import downloads  # noqa: PLC0415 -- heavy import

    try:
        downloads.inspect_repo_on(hub, name)
    except StudioError as error:
        return error
    return None
