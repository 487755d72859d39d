"""The interface between the queue and what runs training: one machine now, maybe a cluster later.

Nothing above it knows about processes. An attempt has a handle, which only its launcher interprets
and which is stored in the database, so that another worker can find the attempt again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from studio.protocols.run_dir import RunDir
from studio.services.tasks.exit_diagnosis import ProcessExit


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    run_id: int
    attempt: int
    folder: RunDir
    gpu: int | None = None
    packages: frozenset[str] = frozenset()
    """The optional packages that the recipe needs."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables for this attempt only."""


class Launcher(Protocol):
    name: str

    def open(self) -> None:
        """Prepare whatever makes attempts start faster."""

    def tick(self) -> None:
        """Maintain that preparation; called often, never blocks."""

    def close(self) -> None:
        """Release it; attempts keep running."""

    def check(self) -> str:
        """Return why nothing can be launched, or ""."""

    def submit(self, spec: LaunchSpec) -> str:
        """Start an attempt and return its handle.

        Raises:
            OSError: it could not be started.

        """

    def poll(self, handle: str) -> ProcessExit | None:
        """Return how the attempt ended, or None while it is running."""

    def stop(self, handle: str) -> None:
        """Ask the attempt to stop. Repeated calls, and calls for ended attempts, do nothing."""

    def kill(self, handle: str) -> None:
        """Kill the attempt and everything it has started."""

    def dump_stacks(self, handle: str) -> None:
        """Make the attempt write its stacks to its log."""

    def adopt(self, spec: LaunchSpec, handle: str) -> str:
        """Take over an attempt that another worker launched. Return its handle.

        An empty handle means that the attempt may have been started without being recorded; return
        "" if it was not started.
        """

    def slots(self) -> int:
        """Return how many runs can train at once, at one slot each."""
