"""Which rows of an archive are held back, where the names of its files say so."""

from collections.abc import Sequence
from dataclasses import replace

from studio.intake.detection.name_heuristics import listed
from studio.intake.detection.row_shapes import Detected
from studio.intake.files.archives import Member, sides
from studio.intake.mapping import Mapping, Split
from studio.intake.raw_rows import Side

_NAMED = 5


def with_sides(found: Detected, members: Sequence[Member]) -> Detected:
    """Return what was detected, with the split that the names of the files say, if they do."""
    told = sides(members)
    if "validation" not in told.values():
        return found
    evidence = [f"Held back to measure progress, by name: {_of(told, 'validation')}."]
    if aside := _of(told, "aside"):
        evidence.append(f"Left out, being for testing by name: {aside}.")
    return replace(
        found,
        mapping=_split(found.mapping),
        evidence=[*found.evidence, *evidence],
        alternatives=[_split(one) for one in found.alternatives],
    )


def _of(told: dict[str, Side], side: Side) -> str:
    names = [name for name, found in told.items() if found == side]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return listed([*names[:_NAMED], *more])


def _split(mapping: Mapping) -> Mapping:
    return mapping.model_copy(update={"split": Split(kind="file")})
