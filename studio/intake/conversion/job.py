"""One reading of a file: all that it takes to make rows of it, here or in another process."""

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from studio.intake.conversion.converter import Converted, Source, convert
from studio.intake.files.limits import Limits
from studio.intake.files.read_progress import Told
from studio.intake.mapping import Mapping
from studio.intake.quality import finding_store

READ = 0.7
"""The share of the work after which the rows are written, and are looked through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    source: Source
    mapping: Mapping | None
    """None leaves it to what is seen in the file."""
    limits: Limits
    validation: Source | None = None
    """A second file, whose rows measure progress."""

    def write(self, folder: Path, told: Told = lambda _share: None) -> Converted:
        """Write the rows of the whole file to a folder, with what is suspicious in them.

        Raises:
            InvalidError: the mapping does not fit the file, or nothing is left of it.
            TooLargeError: it unpacks to more than may be kept.

        """
        source, limits = self.source, self.limits
        made = convert(
            source, self.mapping, folder, limits, lambda share: told(READ * share), self.validation
        )
        found = finding_store.look(folder, lambda share: self._told_in_time(told, share))
        return replace(made, findings=found)

    def _told_in_time(self, told: Told, share: float) -> None:
        if self.limits.deadline is not None:
            self.limits.deadline.check()
        told(READ + (1 - READ) * share)


READING = TypeAdapter(Reading)
CONVERTED = TypeAdapter(Converted)
"""As one process tells another of them."""
