"""The first rows of a file under a mapping, for the preview of the mapping page."""

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
"""Rows to try: few enough to take no noticeable time."""
SHOWN_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingPreview:
    sampled: int = 0
    usable: int = 0
    is_whole_file: bool = False
    rows: list[PreviewedRow] = field(default_factory=list)
    """The first usable rows."""
    dropped: list[PreviewedRow] = field(default_factory=list)
    """The first rows left out."""
    reasons: Values[str, list[str]] = field(default_factory=dict)
    """Why rows are left out, with their positions; the most frequent reason first."""
    training_target: str = ""
    """What training uses of such rows."""
    unused_parts: str = ""
    """What training ignores in such rows."""
    rejected: int = 0
    """How many usable rows teach nothing, because they are rated bad."""
    error: StudioError | None = None
    """Why there is no preview, if there is none."""

    @property
    def trained_on(self) -> int:
        return self.usable - self.rejected

    @property
    def dropped_count(self) -> int:
        return self.sampled - self.usable


def preview_mapping(source: SourceFile, mapping: Mapping, limits: Limits) -> MappingPreview:
    """Apply a mapping to the first rows."""
    try:
        previewed = preview_rows(source, mapping, limits, rows=SAMPLE_ROWS)
    except InvalidError as error:
        return MappingPreview(error=error)
    usable_rows = [row for row in previewed if row.row is not None]
    dropped = [row for row in previewed if row.row is None]
    reasons: dict[str, list[str]] = {}
    for row in dropped:
        reasons.setdefault(row.problem or "", []).append(row.place)
    return MappingPreview(
        sampled=len(previewed),
        usable=len(usable_rows),
        is_whole_file=len(previewed) < SAMPLE_ROWS,
        rows=usable_rows[:SHOWN_ROWS],
        dropped=dropped[:SHOWN_ROWS],
        reasons=dict(sorted(reasons.items(), key=lambda pair: -len(pair[1]))),
        training_target=mapping_text.TRAINED_ON[mapping.kind],
        unused_parts=mapping_text.NOT_TRAINED_ON.get(mapping.shape, ""),
        rejected=sum(
            row.row is not None and to_sft_example(row.row) is None for row in usable_rows
        ),
    )
