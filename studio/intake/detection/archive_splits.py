"""Detect the validation split of an archive from its file names."""

from collections.abc import Sequence
from dataclasses import replace

from studio.intake.detection.name_heuristics import join_names
from studio.intake.detection.row_shapes import DetectedMapping
from studio.intake.files.archives import Member, assign_splits
from studio.intake.mapping import Mapping, Split
from studio.intake.raw_rows import AssignedSplit

_SHOWN_NAMES = 5


def add_archive_splits(detected: DetectedMapping, members: Sequence[Member]) -> DetectedMapping:
    """Return the detected mapping with the split that the file names give, if any."""
    splits = assign_splits(members)
    if "validation" not in splits.values():
        return detected
    evidence = [f"Used for validation, by file name: {_names_assigned_to(splits, 'validation')}."]
    if aside := _names_assigned_to(splits, "aside"):
        evidence.append(f"Left out as test data, by file name: {aside}.")
    return replace(
        detected,
        mapping=_with_file_split(detected.mapping),
        evidence=[*detected.evidence, *evidence],
        alternatives=[_with_file_split(mapping) for mapping in detected.alternatives],
    )


def _names_assigned_to(splits: dict[str, AssignedSplit], side: AssignedSplit) -> str:
    names = [name for name, split in splits.items() if split == side]
    more = [f"{len(names) - _SHOWN_NAMES} more"] if len(names) > _SHOWN_NAMES else []
    return join_names([*names[:_SHOWN_NAMES], *more])


def _with_file_split(mapping: Mapping) -> Mapping:
    return mapping.model_copy(update={"split": Split(kind="file")})
