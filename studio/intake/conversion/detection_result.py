"""What is seen in a file when it has come, and kept."""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from studio.intake.conversion.converter import Source, look
from studio.intake.detection.row_shapes import Detected, UnrecognisedError
from studio.intake.files.format_detection import recognise
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping

DETECTED = TypeAdapter(Detected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A file that has come, as another process tells of it."""

    format: str
    detected: dict[str, Any]
    """A `Detected` as JSON; nothing where no column is recognised, for a person may know better."""


ARRIVAL = TypeAdapter(Arrival)


def unseen(source: Source) -> Arrival:
    """Return what a file is by its first bytes, where looking at its rows must wait.

    Raises:
        InvalidError: it is nothing that is read.

    """
    return Arrival(format=recognise(source.path, source.filename), detected={})


def arrival(source: Source, limits: Limits, mapping: Mapping | None = None) -> Arrival:
    """Look at a file; the mapping is what its owner says of it already.

    Raises:
        InvalidError: it cannot be read, or no row of it can be trained on.

    """
    kind = recognise(source.path, source.filename)
    try:
        found: dict[str, Any] = DETECTED.dump_python(
            look(source, limits, mapping).detected, mode="json"
        )
    except UnrecognisedError:
        found = {}
    return Arrival(format=kind, detected=found)
