"""What the worker asks of whatever starts attempts."""

import socket
from typing import Protocol

from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.worker.processes.launcher import LaunchSpec


class Launcher(Protocol):
    """Starts attempts, and says how they are. A handle is stored; only the launcher reads it."""

    def open(self) -> None:
        """Prepare for attempts."""

    def want(self) -> None:
        """Note that an attempt may start soon."""

    def tick(self) -> None:
        """Do what is due; called often, never blocks.

        Raises:
            StudioError: what starts attempts cannot be reached at present.

        """

    @property
    def news(self) -> socket.socket | None:
        """What is readable once `tick` has something to do, if it can be waited for."""

    def close(self) -> None:
        """End the preparation; attempts keep running."""

    def submit(self, spec: LaunchSpec) -> str:
        """Start an attempt and return its handle.

        Raises:
            ConflictError: this attempt has been submitted before.
            OSError: it could not be started.

        """

    def poll(self, handle: str) -> ProcessExit | None:
        """Return how the attempt ended, or None while it waits or runs, as far as is known.

        Raises:
            InvalidError: what starts attempts refuses this one.

        """

    def waits_for(self, handle: str) -> str | None:
        """Return what an attempt waits for before it starts; None if it has started."""

    def stop(self, handle: str) -> None:
        """Ask the attempt to stop; it gets SIGTERM. Repeated calls do nothing."""

    def kill(self, handle: str) -> None:
        """Kill the attempt and everything it has started."""

    def dump_stacks(self, handle: str) -> None:
        """Make the attempt write its stacks to its log."""

    def pid(self, handle: str) -> int:
        """Return the process of an attempt on this machine; 0 if it has none."""

    def adopt(self, spec: LaunchSpec, handle: str) -> str:
        """Take over an attempt of another worker, and return its handle.

        An empty handle means that the attempt may have been started without being recorded; the
        answer is "" if it was not started.
        """

    def slots(self) -> int:
        """Return how many runs can train at once, at one slot each."""
