"""Isolation of a worker's steps: an error in one run, task or service stops none of the others."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy.exc import DatabaseError

from studio.db.tables import FailingStep
from studio.errors import StudioError

log = logging.getLogger(__name__)

MAX_FAILURES = 5
"""How often in a row a step of one run or task may fail before that run or task is ended."""

_SHORTAGE_ERRNOS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE),
        *(errno.ENOMEM, errno.EAGAIN, errno.EINTR),
    }
)
"""What the machine is short of: no run is to blame, and it passes."""


@dataclass(slots=True)
class _FailingState:
    error: Exception
    since: datetime
    times: int = 1


@dataclass(slots=True)
class FaultIsolation:
    """Runs steps one by one; counts those that raise, and logs them ever more rarely."""

    failures: int = 0
    """How many steps have raised since the worker started."""
    _failing: dict[tuple[str, str], _FailingState] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, subject: str = "") -> Iterator[None]:
        """Keep an error inside one step, of the worker itself or of one `subject`."""
        with catch_errors() as errors:
            yield
        if errors:
            self._record(name, subject, errors[0])
        elif self._failing.pop((name, subject), None):
            log.info("step_recovered", extra={"step": name, "subject": subject})

    def error(self, name: str, subject: str = "") -> Exception | None:
        """Return what a step raised the last time, or None if it succeeded."""
        failing = self._failing.get((name, subject))
        return failing.error if failing else None

    def final_error(self, name: str, subject: str) -> Exception | None:
        """Return why a step fails for its subject's own sake, so that another try is in vain."""
        failing = self._failing.get((name, subject))
        if failing is None or is_shortage(failing.error):
            return None
        # A refusal in words does not change; anything else may have been met halfway.
        is_final = isinstance(failing.error, StudioError) or failing.times >= MAX_FAILURES
        return failing.error if is_final else None

    def forget(self, subject: str) -> None:
        """Drop what is known of a subject that is gone."""
        self._failing = {key: one for key, one in self._failing.items() if key[1] != subject}

    def failing_steps(self) -> list[FailingStep]:
        """Return the steps that failed the last time, oldest first."""
        return [
            FailingStep(step=name, subject=subject, error=type(one.error).__name__, since=one.since)
            for (name, subject), one in list(self._failing.items())
        ]

    def _record(self, name: str, subject: str, error: Exception) -> None:
        self.failures += 1
        failing = self._failing.setdefault(
            (name, subject), _FailingState(error, datetime.now(UTC), 0)
        )
        failing.error, failing.times = error, failing.times + 1
        # A tick comes five times a second: the 1st, 2nd, 4th, 8th … failure is logged.
        if failing.times & (failing.times - 1) == 0:
            facts = {"step": name, "subject": subject, "times": failing.times}
            log.error("step_failed", extra=facts, exc_info=error)


@contextmanager
def catch_errors() -> Iterator[list[Exception]]:
    """Keep any error inside; afterwards it is in the list, for the caller to tell."""
    errors: list[Exception] = []
    try:
        yield errors
    except Exception as error:  # noqa: BLE001 -- the queue must go on, whatever one part raised
        errors.append(error)


def is_shortage(error: Exception) -> bool:
    """Whether the machine or its database is to blame, and not what was worked on."""
    if isinstance(error, DatabaseError) or isinstance(error.__cause__, DatabaseError):
        return True
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in _SHORTAGE_ERRNOS
