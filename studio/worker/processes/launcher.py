"""The seam between the queue and whatever runs training: one machine now, a cluster one day.

Nothing above it knows processes: an attempt has a handle, which means something to its launcher
alone and is kept in the database, so that it can be found again by another worker.
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
    """The optional packages that its recipe needs."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What only this attempt finds in its environment."""


class Launcher(Protocol):
    name: str

    def open(self) -> None:
        """Make ready what lets attempts start sooner."""

    def tick(self) -> None:
        """Look after that; called often, and never waits."""

    def close(self) -> None:
        """Let it go; attempts stay."""

    def check(self) -> str:
        """Say what keeps it from launching anything, or nothing."""

    def submit(self, spec: LaunchSpec) -> str:
        """Start an attempt and return its handle.

        Raises:
            OSError: it could not be started.

        """

    def poll(self, handle: str) -> ProcessExit | None:
        """Return how the attempt has ended, or None while it goes on."""

    def stop(self, handle: str) -> None:
        """Ask the attempt to leave. Asking again, or asking what is gone, does nothing."""

    def kill(self, handle: str) -> None:
        """End the attempt and all that it has started, at once."""

    def dump_stacks(self, handle: str) -> None:
        """Have the attempt write into its log where it stands."""

    def adopt(self, spec: LaunchSpec, handle: str) -> str:
        """Take up an attempt that another worker has launched. Return its handle.

        Without one it may have been started, and never written down; nothing if it was not.
        """

    def slots(self) -> int:
        """Return how many runs of one slot can train at once."""
