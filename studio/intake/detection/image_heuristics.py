"""Recognise rows with images: the columns that hold them, and what the other columns are."""

import re
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Values
from dataclasses import dataclass, replace
from typing import Any

from studio.intake.detection.column_types import ColumnTable, build_table, is_label, is_text
from studio.intake.detection.media import find_unused_media, image_columns
from studio.intake.detection.name_heuristics import Sureness, join_names
from studio.intake.detection.row_shapes import (
    KIND_NAMES,
    DetectedMapping,
    UnrecognisedError,
    detect_mapping,
    find_unused_columns,
)
from studio.intake.mapping import IMAGE_SHAPES, Mapping
from studio.intake.row_formats.image_parts import placed_images, row_turns
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import UnusableRowError

_IMAGE_NAMES = ("images", "image", "img", "picture", "photo", "file_name")
_NUMBERED = re.compile(r"(?:images?|imgs?|pictures?|photos?)_?\d+", re.IGNORECASE)
_CAPTIONS = (
    *("caption", "captions", "description", "text", "label", "labels", "answer", "answers"),
    *("ground_truth", "latex_formula", "latex", "transcription", "ocr", "class", "category"),
)
_SURE_SHARE, _LIKELY_SHARE = 0.9, 0.5


@dataclass(frozen=True, slots=True)
class _Tried:
    mapping: Mapping
    base: DetectedMapping
    usable: int
    with_images: int


def detect_image_mapping(
    rows: Sequence[Values[str, Any]], media_rows: int
) -> DetectedMapping | None:
    """Return a mapping of rows that uses their images; None if none of them can be used."""
    table = build_table(rows)
    found = image_columns(rows, table.columns)
    texts = [{name: row[name] for name in row if name not in found} for row in rows]
    chosen = _choose_columns(found)
    tried = [_try(mapping, base, rows) for mapping, base in _candidates(table, texts, chosen)]
    best = max(tried, key=lambda one: one.usable, default=None)
    if best is None or not best.with_images:
        return None
    return replace(
        best.base,
        mapping=best.mapping,
        kind=best.mapping.kind,
        sureness=_sureness(best, len(rows)),
        evidence=_evidence(best, len(rows)),
        alternatives=[one.mapping for one in tried if one is not best and one.with_images],
        unused=find_unused_columns(table, best.mapping),
        questions=[*_mixed_question(best), *best.base.questions],
        media_rows=media_rows,
    )


def _choose_columns(found: Sequence[str]) -> list[str]:
    """Return the columns to use: others often hold the same images in another way."""
    by_habit = {name.strip().lower(): name for name in reversed(found)}
    for name in _IMAGE_NAMES:
        if name in by_habit:
            return [by_habit[name]]
    numbered = [name for name in found if _NUMBERED.fullmatch(name.strip())]
    return numbered or list(found[:1])


def _candidates(
    table: ColumnTable, texts: Sequence[Values[str, Any]], images: list[str]
) -> Iterator[tuple[Mapping, DetectedMapping]]:
    try:
        base = detect_mapping(texts)
    except UnrecognisedError:
        base = None
    for mapping in [base.mapping, *base.alternatives] if base else ():
        if base and (fitted := _with_images(mapping, images)):
            yield fitted, base
    answer = _caption_column(table, images)
    if answer and images:
        roles = {"completion": [answer], "images": images}
        mapping = Mapping(shape="prompt_completion", roles=roles, media="use")
        reason = f"Column {answer} describes each image."
        yield (
            mapping,
            DetectedMapping(
                mapping=mapping,
                kind=mapping.kind,
                sureness="likely",
                evidence=[reason],
                alternatives=[],
                unused=[],
            ),
        )


def _with_images(mapping: Mapping, images: list[str]) -> Mapping | None:
    """Return a mapping of the text that uses the images, too, if its shape can."""
    roles = {"images": images} if images else {}
    if mapping.shape in IMAGE_SHAPES:
        return mapping.model_copy(update={"roles": mapping.roles | roles, "media": "use"})
    answer = {"classification": "label", "regression": "number"}.get(mapping.shape)
    if answer is None or not images:
        return None
    prompts = {"prompt": mapping.roles["text"], "completion": mapping.roles[answer][:1]}
    changes = {"shape": "prompt_completion", "roles": prompts | roles, "media": "use"}
    return mapping.model_copy(update=changes)


def _caption_column(table: ColumnTable, images: list[str]) -> str:
    """Return the column that says what an image shows, if there is one."""
    named = table.find_column(_CAPTIONS)
    others = [name for name in table.columns if name not in images]
    if named is not None and named not in images:
        return named
    texts = [name for name in others if is_text(table.columns[name])]
    labels = [name for name in others if is_label(table.columns[name])]
    return next((names[0] for names in (texts, labels) if len(names) == 1), "")


def _try(mapping: Mapping, base: DetectedMapping, rows: Sequence[Values[str, Any]]) -> _Tried:
    counts = [_count_images(mapping, row) for row in rows]
    usable = [count for count in counts if count is not None]
    return _Tried(mapping, base, len(usable), len([count for count in usable if count]))


def _count_images(mapping: Mapping, row: Values[str, Any]) -> int | None:
    """Return how many images a row has, or None if it cannot be used."""
    if find_unused_media(row, mapping.roles.get("images", ())):
        return None
    try:
        built = build_row(mapping, row)
    except UnusableRowError:
        return None
    return sum(len(placed_images(turn)) for turn in row_turns(built))


def _sureness(best: _Tried, rows: int) -> Sureness:
    if best.usable < _LIKELY_SHARE * rows:
        return "guess"
    is_sure = best.usable >= _SURE_SHARE * rows and best.with_images == rows
    return best.base.sureness if is_sure or best.base.sureness == "guess" else "likely"


def _evidence(best: _Tried, rows: int) -> list[str]:
    images = best.mapping.roles.get("images", [])
    where = f"Column {join_names(images)} holds images." if images else "The turns hold images."
    become = KIND_NAMES["images"]
    usable = f"{best.usable:,} of {rows:,} sampled rows are usable as {become}."
    return [*best.base.evidence[:1], where, usable, *best.base.evidence[2:]]


def _mixed_question(best: _Tried) -> list[str]:
    without = best.usable - best.with_images
    if not without:
        return []
    question = (
        f"{best.with_images:,} of {best.usable:,} sampled rows have images. Use the images, or "
        "only the text of these rows?"
    )
    return [question]
