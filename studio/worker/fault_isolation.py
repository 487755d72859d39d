"""Isolate a worker's steps: an error in one run, task or service stops none of the others."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy.exc import DatabaseError, DataError

from studio.db.tables import FailingStep
from studio.errors import StudioError

log = logging.getLogger(__name__)

MAX_FAILURES = 5
"""How many times in a row a step of a run or task may fail before that run or task is ended."""

_SHORTAGE_ERRNOS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE),
        *(errno.ENOMEM, errno.EAGAIN, errno.EINTR),
    }
)
"""Temporary shortages on the machine, which no run causes."""


@dataclass(slots=True)
class _FailingState:
    error: Exception
    since: datetime
    times: int = 1


@dataclass(slots=True)
class FaultIsolation:
    """Runs steps, counts those that raise, and logs repeated failures with decreasing frequency."""

    failures: int = 0
    """How many steps have raised an error since the worker started."""
    _failing: dict[tuple[str, str], _FailingState] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, subject: str = "") -> Iterator[None]:
        """Contain errors in one step, of the worker itself or of one `subject`."""
        with catch_errors() as errors:
            yield
        if errors:
            self._record(name, subject, errors[0])
        elif self._failing.pop((name, subject), None):
            log.info("step_recovered", extra={"step": name, "subject": subject})

    def error(self, name: str, subject: str = "") -> Exception | None:
        """Return the error of the step's last run, or None if it succeeded."""
        failing = self._failing.get((name, subject))
        return failing.error if failing else None

    def final_error(self, name: str, subject: str) -> Exception | None:
        """Return the error if its subject causes it, so that another try would be useless."""
        failing = self._failing.get((name, subject))
        if failing is None or is_shortage(failing.error):
            return None
        # A StudioError will recur; any other error may be transient.
        is_final = isinstance(failing.error, StudioError) or failing.times >= MAX_FAILURES
        return failing.error if is_final else None

    def forget(self, subject: str) -> None:
        """Drop the record of a subject that is gone."""
        self._failing = {key: state for key, state in self._failing.items() if key[1] != subject}

    def failing_steps(self) -> list[FailingStep]:
        """Return the steps that failed at their last run, oldest first."""
        return [
            FailingStep(
                step=name, subject=subject, error=type(state.error).__name__, since=state.since
            )
            for (name, subject), state in list(self._failing.items())
        ]

    def _record(self, name: str, subject: str, error: Exception) -> None:
        self.failures += 1
        failing = self._failing.setdefault(
            (name, subject), _FailingState(error, datetime.now(UTC), 0)
        )
        failing.error, failing.times = error, failing.times + 1
        # There are five ticks per second: log the 1st, 2nd, 4th, 8th … failure.
        if failing.times & (failing.times - 1) == 0:
            facts = {"step": name, "subject": subject, "times": failing.times}
            log.error("step_failed", extra=facts, exc_info=error)


@contextmanager
def catch_errors() -> Iterator[list[Exception]]:
    """Contain any error; afterwards it is in the list, for the caller to report."""
    errors: list[Exception] = []
    try:
        yield errors
    except Exception as error:  # noqa: BLE001 -- an error in one part must not stop the queue
        errors.append(error)


def is_shortage(error: Exception) -> bool:
    """Whether the machine or its database caused an error, and not the work itself."""
    for cause in (error, error.__cause__):
        # What cannot be stored, such as a number too large for its column, cannot be later either.
        if isinstance(cause, DatabaseError) and not isinstance(cause, DataError):
            return True
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in _SHORTAGE_ERRNOS
