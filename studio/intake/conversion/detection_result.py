"""The result of detecting an uploaded file's format and mapping, as it is stored."""

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
    """What was detected in an uploaded file, as one process sends it to another."""

    format: str
    detected: dict[str, Any]
    """A `DetectedMapping` as JSON.

    Empty if no column is recognised, because the user may know better.
    """


DETECTION_RESULT_ADAPTER = TypeAdapter(DetectionResult)


def detect_format_only(source: SourceFile) -> DetectionResult:
    """Return a file's format from its first bytes, when detecting its rows must wait.

    Raises:
        InvalidError: the format is not supported.

    """
    return DetectionResult(format=detect_format(source.path, source.filename), detected={})


def detect_file(
    source: SourceFile, limits: Limits, mapping: Mapping | None = None
) -> DetectionResult:
    """Detect a file's format and mapping; `mapping` holds what the user has already chosen.

    Raises:
        InvalidError: it cannot be read, or no row can be trained on.

    """
    kind = detect_format(source.path, source.filename)
    try:
        detected: dict[str, Any] = DETECTED_MAPPING_ADAPTER.dump_python(
            inspect_file(source, limits, mapping).detected, mode="json"
        )
    except UnrecognisedError:
        detected = {}
    return DetectionResult(format=kind, detected=detected)
