"""One reading of a file: all that it takes to make rows of it, here or in another process."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from studio.intake.convert import Converted, Source, convert
from studio.intake.followed import Told
from studio.intake.mapping import Mapping
from studio.intake.rows import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    source: Source
    mapping: Mapping | None
    """None leaves it to what is seen in the file."""
    limits: Limits
    validation: Source | None = None
    """A second file, whose rows measure progress."""

    def write(self, folder: Path, told: Told = lambda _share: None) -> Converted:
        """Write the rows of the whole file to a folder.

        Raises:
            InvalidError: the mapping does not fit the file, or nothing is left of it.
            TooLargeError: it unpacks to more than may be kept.

        """
        return convert(self.source, self.mapping, folder, self.limits, told, self.validation)


READING = TypeAdapter(Reading)
CONVERTED = TypeAdapter(Converted)
"""As one process tells another of them."""
