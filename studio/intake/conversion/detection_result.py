"""What is seen in a file when it has come, and kept."""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.detection.row_shapes import DetectedMapping, UnrecognisedError
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping

DETECTED_MAPPING_ADAPTER = TypeAdapter(DetectedMapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult:
    """A file that has come, as another process tells of it."""

    format: str
    detected: dict[str, Any]
    """A `DetectedMapping` as JSON.

    Nothing where no column is recognised, for a person may know better.
    """


DETECTION_RESULT_ADAPTER = TypeAdapter(DetectionResult)


def detect_format_only(source: SourceFile) -> DetectionResult:
    """Return what a file is by its first bytes, where looking at its rows must wait.

    Raises:
        InvalidError: it is nothing that is read.

    """
    return DetectionResult(format=detect_format(source.path, source.filename), detected={})


def detect_file(
    source: SourceFile, limits: Limits, mapping: Mapping | None = None
) -> DetectionResult:
    """Look at a file; the mapping is what its owner says of it already.

    Raises:
        InvalidError: it cannot be read, or no row of it can be trained on.

    """
    kind = detect_format(source.path, source.filename)
    try:
        found: dict[str, Any] = DETECTED_MAPPING_ADAPTER.dump_python(
            inspect_file(source, limits, mapping).detected, mode="json"
        )
    except UnrecognisedError:
        found = {}
    return DetectionResult(format=kind, detected=found)
