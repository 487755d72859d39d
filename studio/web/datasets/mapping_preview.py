"""What a mapping makes of the first rows of a file, as the mapping screen tells it."""

from collections.abc import Mapping as Values
from dataclasses import dataclass, field

from studio.errors import InvalidError, StudioError
from studio.intake import mapping_text
from studio.intake.conversion.converter import Source
from studio.intake.conversion.mapping_preview import Previewed, preview
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from studio.intake.row_formats.sft_view import lesson

LOOKED_AT = 300
"""Rows that are tried: as many as take no time to."""
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    looked_at: int = 0
    kept: int = 0
    is_whole: bool = False
    rows: list[Previewed] = field(default_factory=list)
    """The first of those that can be learnt from."""
    dropped: list[Previewed] = field(default_factory=list)
    """The first of those left out."""
    reasons: Values[str, list[str]] = field(default_factory=dict)
    """Why rows are left out, the most frequent first, with their places."""
    lesson: str = ""
    """What training learns from such rows."""
    not_learnt: str = ""
    """What of such rows training does not use."""
    judged_bad: int = 0
    """How many of the rows that are kept teach nothing, because they are judged bad."""
    refused: StudioError | None = None
    """Why nothing can be said, where nothing can."""

    @property
    def learnt(self) -> int:
        return self.kept - self.judged_bad

    @property
    def left_out(self) -> int:
        return self.looked_at - self.kept


def of(source: Source, mapping: Mapping, limits: Limits) -> Outcome:
    """Try a mapping on the first rows."""
    try:
        found = preview(source, mapping, limits, rows=LOOKED_AT)
    except InvalidError as error:
        return Outcome(refused=error)
    kept = [one for one in found if one.row is not None]
    dropped = [one for one in found if one.row is None]
    reasons: dict[str, list[str]] = {}
    for one in dropped:
        reasons.setdefault(one.problem or "", []).append(one.place)
    return Outcome(
        looked_at=len(found),
        kept=len(kept),
        is_whole=len(found) < LOOKED_AT,
        rows=kept[:SHOWN],
        dropped=dropped[:SHOWN],
        reasons=dict(sorted(reasons.items(), key=lambda pair: -len(pair[1]))),
        lesson=mapping_text.LESSONS[mapping.kind],
        not_learnt=mapping_text.NOT_LEARNT.get(mapping.shape, ""),
        judged_bad=sum(one.row is not None and lesson(one.row) is None for one in kept),
    )
