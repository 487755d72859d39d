"""The files by which a worker and the job of an attempt speak: on a disk that both see.

The files exist before the job starts and are overwritten in place, at a fixed size: a network file
system shows a changed file to each process that opens it, while a new name may stay unseen for a
minute.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

_FILE_BYTES = 256


class Order(StrEnum):
    """What the worker asks of a job."""

    NONE = ""
    DUMP = "dump"
    """Write the stacks of all threads to the log."""
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Report:
    """What a job says of itself."""

    beat: int = 0
    """Counts up while the job lives; 0 before it has started."""
    host: str = ""
    exit_code: int | None = None
    """How the attempt ended, negative for a signal; None while it runs."""


@dataclass(frozen=True, slots=True)
class JobFolder:
    root: Path

    @classmethod
    def of(cls, run: Path, attempt: int) -> "JobFolder":
        return cls(run / "jobs" / str(attempt))

    def create(self, secrets: Mapping[str, str]) -> None:
        """Create the folder, with what only the job may read.

        Raises:
            FileExistsError: it exists, so the attempt has been submitted.

        """
        self.root.parent.mkdir(exist_ok=True)
        self.root.mkdir()
        self.write_report(Report())
        self.write_order(Order.NONE)
        if secrets:
            handle = os.open(self._secrets, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(dict(secrets), file)

    def take_secrets(self) -> dict[str, str]:
        """Return the secrets, and delete their file."""
        with suppress(FileNotFoundError):
            secrets: dict[str, str] = json.loads(self._secrets.read_text(encoding="utf-8"))
            self._secrets.unlink()
            return secrets
        return {}

    def claim(self) -> bool:
        """Mark the attempt as started. Return whether it was not: it starts once at most."""
        with suppress(FileExistsError):
            (self.root / "started").touch(exist_ok=False)
            return True
        return False

    @property
    def is_claimed(self) -> bool:
        return (self.root / "started").exists()

    def write_report(self, report: Report) -> None:
        _overwrite(self.root / "report", json.dumps(asdict(report)))

    def read_report(self) -> Report | None:
        """Return what the job has said; None if that cannot be read at present."""
        with suppress(OSError, ValueError, TypeError):
            return Report(**json.loads((self.root / "report").read_text(encoding="utf-8")))
        return None

    def write_order(self, order: Order) -> None:
        _overwrite(self.root / "order", order.value)

    def read_order(self) -> Order:
        with suppress(OSError, ValueError):
            return Order((self.root / "order").read_text(encoding="utf-8").strip())
        return Order.NONE

    @property
    def _secrets(self) -> Path:
        return self.root / "secrets"


def _overwrite(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(handle, text.ljust(_FILE_BYTES).encode(), 0)
        os.fsync(handle)
    finally:
        os.close(handle)
