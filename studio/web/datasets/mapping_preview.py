"""What a mapping makes of the first rows of a file, as the mapping screen tells it."""

from collections.abc import Mapping as Values
from dataclasses import dataclass, field

from studio.errors import InvalidError, StudioError
from studio.intake import mapping_text
from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.mapping_preview import PreviewedRow, preview_rows
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from studio.intake.row_formats.sft_view import to_sft_example

SAMPLE_ROWS = 300
"""Rows that are tried: as many as take no time to."""
SHOWN_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingPreview:
    looked_at: int = 0
    usable: int = 0
    is_whole: bool = False
    rows: list[PreviewedRow] = field(default_factory=list)
    """The first of those that can be learnt from."""
    dropped: list[PreviewedRow] = field(default_factory=list)
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
        return self.usable - self.judged_bad

    @property
    def left_out(self) -> int:
        return self.looked_at - self.usable


def preview_mapping(source: SourceFile, mapping: Mapping, limits: Limits) -> MappingPreview:
    """Try a mapping on the first rows."""
    try:
        found = preview_rows(source, mapping, limits, rows=SAMPLE_ROWS)
    except InvalidError as error:
        return MappingPreview(refused=error)
    kept = [one for one in found if one.row is not None]
    dropped = [one for one in found if one.row is None]
    reasons: dict[str, list[str]] = {}
    for one in dropped:
        reasons.setdefault(one.problem or "", []).append(one.place)
    return MappingPreview(
        looked_at=len(found),
        usable=len(kept),
        is_whole=len(found) < SAMPLE_ROWS,
        rows=kept[:SHOWN_ROWS],
        dropped=dropped[:SHOWN_ROWS],
        reasons=dict(sorted(reasons.items(), key=lambda pair: -len(pair[1]))),
        lesson=mapping_text.TRAINED_ON[mapping.kind],
        not_learnt=mapping_text.NOT_TRAINED_ON.get(mapping.shape, ""),
        judged_bad=sum(one.row is not None and to_sft_example(one.row) is None for one in kept),
    )
