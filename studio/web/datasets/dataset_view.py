"""Template context of a dataset's page: its rows, versions and findings."""

from collections.abc import Mapping as Values
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from studio.db.tables import Dataset, DatasetVersion
from studio.errors import InvalidError
from studio.intake import mapping_text
from studio.intake.conversion import file_preview
from studio.intake.mapping import Mapping
from studio.intake.quality.dataset_checks import MAX_LISTED_ROWS
from studio.intake.readers.file_reader import ROW_UNITS
from studio.intake.rows.filters import EXCLUSION_REASONS
from studio.intake.rows.paging import Page
from studio.services.datasets import data_quality, dataset_builds, pending_datasets, versions
from studio.services.datasets.versions import Part, RowQuery
from studio.settings import Settings
from studio.web.datasets import mapping_view
from studio.web.http.multipart_upload import read_limits

PAGE_ROWS = 10
"""Rows per page; a long row is folded to a few lines."""
_SHORT_TEXT, _SHORT_LINES, _SHORT_TURNS = 200, 3, 2
_MAX_ROW_NUMBERS = 100
"""Most row numbers that one query may name."""


class DatasetQuery(BaseModel):
    """The query parameters of a dataset's page."""

    model_config = ConfigDict(extra="ignore")

    version: int | None = Field(default=None, ge=1, lt=2**31)
    split: Part = "train"
    after: int = Field(default=0, ge=0, lt=2**53)
    q: str = Field(default="", max_length=200)
    rows: str = Field(default="", max_length=2000)
    """Row numbers as the version counts them."""
    finding: str = Field(default="", max_length=50)
    """Show only the rows with a finding of this code."""
    original: str = Field(default="", max_length=2000)
    """Row numbers as the file counts them."""
    told: str = ""
    """`same`: the requested mapping gave rows that a version already had; `out`: it excluded
    some."""
    before: int | None = Field(default=None, ge=1, lt=2**31)
    """The version in use before that change."""

    def row_selection(self) -> RowQuery:
        return RowQuery(
            part=self.split,
            after=self.after,
            words=self.q.strip(),
            numbers=_parse_numbers(self.rows),
            finding=self.finding,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionEntry:
    """A version in the version list."""

    version: DatasetVersion
    changes: list[str]
    """How its mapping differs from that of the version before."""
    runs: int


def build_context(
    db: Session, config: Settings, dataset: Dataset, asked: DatasetQuery
) -> dict[str, Any]:
    """Return the template context of a dataset's page."""
    number = asked.version or dataset.version
    version = versions.get(db, dataset.id or 0, number) if number else None
    all_versions = versions.list_versions(db, dataset.id or 0)
    mapping = Mapping.model_validate(version.mapping) if version else None
    row_query, folder = asked.row_selection(), config.datasets
    rows = versions.load_rows(folder, version, row_query, limit=PAGE_ROWS) if version else None
    rows = rows or Page(rows=[], has_more=False)
    return {
        "dataset": dataset,
        "version": version,
        "entries": _version_entries(all_versions, versions.count_runs(db, dataset.id or 0)),
        "words": mapping_text.describe_mapping(mapping) if mapping else "",
        "split_words": mapping_text.describe_split(mapping.split) if mapping else "",
        "uses": mapping_view.method_uses(mapping) if mapping else [],
        "reasons": EXCLUSION_REASONS,
        "place": ROW_UNITS.get(dataset.format, "row"),
        "asked": asked,
        "rows": rows,
        "page_size": PAGE_ROWS,
        "folded": {entry.number for entry in rows.rows if is_long(entry.row)},
        "spots": data_quality.locate_spans(folder, version, row_query, rows) if version else {},
        "original": _original_rows(config, dataset, asked, mapping),
        "chore": dataset_builds.latest_task(db, dataset.id or 0),
        "can_edit": _can_edit(config, dataset),
        "findings": _quality_findings(version, mapping) if version and mapping else None,
        "kept": MAX_LISTED_ROWS,
        "looking": data_quality.latest_scan(db, version)
        if version and version.findings is None
        else None,
        "name": dataset.name,
        "problem": None,
    }


def is_long(row: Values[str, Any]) -> bool:
    """Whether a row has more to show than the few lines that the list gives it."""
    turns = [turn for name in ("messages", "chosen", "rejected") for turn in row.get(name, ())]
    texts = [row.get("text", ""), *(turn.get("content") or "" for turn in turns)]
    is_long_text = any(
        len(text) > _SHORT_TEXT or text.count("\n") >= _SHORT_LINES for text in texts
    )
    return is_long_text or len(turns) > _SHORT_TURNS or any("tool_calls" in turn for turn in turns)


def _version_entries(
    dataset_versions: Sequence[DatasetVersion], run_counts: dict[int, int]
) -> list[VersionEntry]:
    """List versions, newest first, each with its changes from the one before."""
    mappings = [Mapping.model_validate(version.mapping) for version in dataset_versions]
    previous_mappings = [*mappings, None][1:]
    return [
        VersionEntry(
            version=version,
            changes=mapping_text.describe_changes(old, new)
            if old
            else [f"{mapping_text.describe_mapping(new)}."],
            runs=run_counts.get(version.number, 0),
        )
        for version, new, old in zip(dataset_versions, mappings, previous_mappings, strict=True)
    ]


def _quality_findings(version: DatasetVersion, mapping: Mapping) -> list[dict[str, Any]] | None:
    """Return the findings with the actions they allow; None before the first data check."""
    if version.findings is None:
        return None
    return [
        finding
        | {
            "is_repeated": finding["code"] in data_quality.DUPLICATE_CODES,
            "can_leave_out": data_quality.can_exclude(mapping, finding),
        }
        for finding in version.findings
    ]


def _original_rows(
    config: Settings, dataset: Dataset, query: DatasetQuery, mapping: Mapping | None
) -> dict[str, Any] | None:
    """Return the requested rows as they are in the uploaded file."""
    numbers = _parse_numbers(query.original)
    if not numbers:
        return None
    source = pending_datasets.original_source(config.datasets, dataset)
    source = replace(source, options=mapping.file) if mapping else source
    if query.split == "validation":
        source = pending_datasets.validation_source(config.datasets, dataset) or source
    result = file_preview.find_rows(source, read_limits(config), numbers)
    rows = [
        {
            "place": row.place,
            "cells": {
                name: file_preview.shorten_value(value, 2000) for name, value in row.values.items()
            },
        }
        for row in result.rows
    ]
    return {"rows": rows, "looked_to": result.searched_to}


def _can_edit(config: Settings, dataset: Dataset) -> bool:
    try:
        pending_datasets.original_source(config.datasets, dataset)
    except InvalidError:
        return False
    return True


def _parse_numbers(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",")][:_MAX_ROW_NUMBERS]
    return frozenset(
        int(part)
        for part in parts
        if part.isdecimal() and len(part) < 16  # noqa: PLR2004 -- no file has more rows
    )
