"""Template context of the mapping page, for the form as it is filled in."""

from collections.abc import Mapping as Values
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from pydantic import ValidationError
from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tables import Dataset
from studio.db.tasks import Task
from studio.errors import InvalidError, StudioError, TooLargeError
from studio.intake import mapping_text
from studio.intake.conversion import file_preview
from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.conversion.file_preview import FilePreview, PreviewedRow, preview_rows
from studio.intake.detection.row_shapes import DetectedMapping
from studio.intake.files.archives import is_archive
from studio.intake.files.encodings import ENCODINGS, EncodingPreview
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits
from studio.intake.mapping import DETECT_ALL, FileOptions, Mapping, Split
from studio.intake.quality.answer_facts import AnswerCounter, AnswerFacts
from studio.intake.raw_rows import RawRow
from studio.intake.readers.option_detection import TEXT_FORMATS, detect_options
from studio.intake.row_formats.schema import to_training_example
from studio.methods import readers
from studio.methods.base import Method
from studio.services.datasets import (
    data_quality,
    dataset_builds,
    datasets,
    pending_datasets,
    versions,
)
from studio.settings import Settings
from studio.web.datasets import mapping_form
from studio.web.datasets.mapping_form import MappingForm
from studio.web.http.multipart_upload import read_limits

SAMPLE_ROWS = 300
"""Rows to try: few enough to take no noticeable time."""
SHOWN_ROWS = 5
PREVIEW_ROWS = 5
"""Rows of the file that the page shows."""


class MethodUse(NamedTuple):
    """What a method uses of rows of one shape."""

    method: Method
    trained_on: str
    ignored: str


def method_uses(mapping: Mapping, answers: AnswerFacts | None = None) -> list[MethodUse]:
    """Return the methods that can train on what a mapping produces, the most suitable first.

    `answers` are the facts of its rows, as far as they are known.
    """
    return [
        MethodUse(method, method.trains_on[mapping.kind], method.ignores.get(mapping.shape, ""))
        for method in data_quality.sort_methods(readers(mapping.kind), mapping.shape)
        if answers is None or not answers.rows or not method.answer_problem(answers)
    ]


def _count_answers(mapping: Mapping, rows: Sequence[PreviewedRow]) -> AnswerFacts | None:
    """Return the facts of the first rows; None if a column is known to hold labels."""
    counter = AnswerCounter()
    for row in rows:
        if row.row is not None:
            counter.add(row.row)
    # The first rows may have more labels than they can teach, or no entity.
    return (
        None if mapping.shape == "classification" or mapping.kind == "tokens" else counter.facts()
    )


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
    uses: list[MethodUse] = field(default_factory=list)
    """What each fitting method uses of such rows."""
    rejected: int = 0
    """How many usable rows are answers that are rated bad."""
    error: StudioError | None = None
    """Why there is no preview, if there is none."""

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
        uses=method_uses(mapping, _count_answers(mapping, usable_rows)),
        rejected=sum(
            row.row is not None and to_training_example(row.row).is_good is False
            for row in usable_rows
        ),
    )


@dataclass(frozen=True, slots=True)
class _DetectedFile:
    """What was detected in a file that is read with certain options."""

    detected: DetectedMapping | None
    reason: str
    """Why no mapping was detected; empty if one was."""
    options: FileOptions
    encodings: list[EncodingPreview]
    sheets: list[str]

    @property
    def mappings(self) -> list[Mapping]:
        return [self.detected.mapping, *self.detected.alternatives] if self.detected else []


class MappingView:
    """A dataset whose mapping is being edited."""

    def __init__(self, db: Session, config: Settings, dataset: Dataset) -> None:
        self.db, self.dataset, self.limits = db, dataset, read_limits(config)
        self.folder = config.datasets
        self.source = pending_datasets.original_source(config.datasets, dataset)

    @property
    def address(self) -> str:
        """The path of the page."""
        return f"/datasets/{self.dataset.id}/mapping"

    def initial_context(
        self, chosen: int | None, options: FileOptions = DETECT_ALL
    ) -> dict[str, Any]:
        """Return what to show first: the chosen mapping, the one in use, or the detected one.

        Options say how to read the file itself, if the user chose that.
        """
        current = versions.current(self.db, self.dataset)
        mapping = Mapping.model_validate(current.mapping) if current else None
        if options == DETECT_ALL and mapping is not None:
            options = mapping.file
        detection = self._detect(options)
        mappings = detection.mappings
        preview = self._read_head(detection.options)
        if chosen is not None and chosen < len(mappings):
            form = mapping_form.form_from_mapping(mappings[chosen], preview)
        elif mapping is not None and mapping.file == detection.options:
            form = mapping_form.form_from_mapping(mapping, preview)
        elif mappings:
            form = mapping_form.form_from_mapping(self._with_validation_file(mappings[0]), preview)
        else:
            form = mapping_form.empty_form(preview, detection.options)
        return self._context(form, detection, preview)

    def form_context(
        self, form: MappingForm, error: ValidationError | InvalidError | None = None
    ) -> dict[str, Any]:
        """Return the template context for the form as posted."""
        options = FileOptions.model_validate(form.file)
        return self._context(form, self._detect(options), self._read_head(options), error)

    def preview(self, form: MappingForm) -> MappingPreview:
        """Return the first rows as a form maps them, or why it cannot be applied."""
        try:
            mapping = form.to_mapping()
        except ValidationError as error:
            return MappingPreview(error=_invalid_mapping(error))
        return preview_mapping(self.source, mapping, self.limits)

    def _context(
        self,
        form: MappingForm,
        detection: "_DetectedFile",
        preview: FilePreview,
        error: ValidationError | InvalidError | None = None,
    ) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "base": self.address,
            "failed": self._failed_task(),
            "detected": detection.detected,
            "unseen": detection.reason,
            "readings": [mapping_text.describe_mapping(mapping) for mapping in detection.mappings],
            "chosen": _chosen_index(detection, form),
            "file": detection.options,
            "file_query": _options_query(detection.options),
            "encodings": detection.encodings,
            "sheets": detection.sheets,
            "all_encodings": ENCODINGS,
            "is_text": self.dataset.format in TEXT_FORMATS,
            "form": mapping_form.add_class_values(form, preview),
            "glance": preview,
            "first": [_preview_row(row) for row in preview.rows[:PREVIEW_ROWS]],
            "problems": _problems(error),
            "is_open": _is_open,
            "outcome": MappingPreview(error=error)
            if isinstance(error, InvalidError)
            else self.preview(form),
            "others": self._validation_options(),
            "is_archive": is_archive(self.source.path),
            "shapes": mapping_text.SHAPE_LABELS,
            "ops": mapping_text.OP_LABELS,
            "duplicates": mapping_text.DEDUPLICATE_LABELS,
            "media": mapping_text.MEDIA_LABELS,
            "is_large": dataset_builds.is_large(self.dataset.bytes, self.dataset.filename),
            "uses_images": form.media == "use",
        }

    def _read_head(self, options: FileOptions) -> FilePreview:
        return file_preview.preview_file(replace(self.source, options=options), self.limits)

    def _detect(self, options: FileOptions) -> "_DetectedFile":
        """Return what was detected at upload, or detect again if the options differ."""
        limits = self.limits.for_request()
        try:
            detected = pending_datasets.load_detection(self.folder, self.dataset, self.limits)
            if options not in (DETECT_ALL, detected.mapping.file):
                detected = inspect_file(replace(self.source, options=options), limits).detected
        except (InvalidError, TooLargeError) as error:
            kind = detect_format(self.source.path, self.source.filename)
            file = detect_options(self.source.path, kind, limits, options)
            return _DetectedFile(None, error.message, file.options, file.encodings, file.sheets)
        return _DetectedFile(
            detected, "", detected.mapping.file, detected.encodings, detected.sheets
        )

    def _with_validation_file(self, mapping: Mapping) -> Mapping:
        if pending_datasets.validation_source(self.folder, self.dataset) is None:
            return mapping
        return mapping.model_copy(update={"split": Split(kind="dataset")})

    def _failed_task(self) -> Task | None:
        task = dataset_builds.latest_task(self.db, self.dataset.id or 0)
        return task if task is not None and task.status is TaskStatus.FAILED else None

    def _validation_options(self) -> list[tuple[str, str]]:
        """Return the possible sources of validation rows: the uploaded file, other datasets."""
        uploaded = pending_datasets.validation_source(self.folder, self.dataset)
        uploaded_options = (
            [("", f"the uploaded validation file, {uploaded.filename}")] if uploaded else []
        )
        dataset_options = [
            (dataset.name, dataset.name)
            for dataset in datasets.newest(self.db)
            if dataset.id != self.dataset.id and dataset.version is not None
        ]
        return uploaded_options + dataset_options


def _options_query(options: FileOptions) -> str:
    """Return the options as the rest of a query string."""
    chosen = options.model_dump(exclude_defaults=True)
    return f"&{urlencode(chosen)}" if chosen else ""


def _preview_row(row: RawRow) -> dict[str, Any]:
    cells = {column: file_preview.shorten_value(value) for column, value in row.values.items()}
    return {"number": row.number, "cells": cells}


def _chosen_index(detection: _DetectedFile, form: MappingForm) -> int | None:
    """Return the index of the detected mapping that the form shows, if any."""
    roles: dict[str, list[str]] = {}
    for column, role in form.roles.items():
        if role:
            roles.setdefault(role, []).append(column)
    matches = (
        i
        for i, mapping in enumerate(detection.mappings)
        if (mapping.shape, mapping.roles) == (form.shape, roles)
    )
    return next(matches, None)


def _problems(error: ValidationError | InvalidError | None) -> dict[str, str]:
    match error:
        case ValidationError():
            return mapping_form.field_problems(error)
        case InvalidError():
            return {error.param or "shape": f"{error.message} {error.hint}".strip()}
    return {}


def _invalid_mapping(error: ValidationError) -> InvalidError:
    name, message = next(iter(mapping_form.field_problems(error).items()))
    return InvalidError(f"{mapping_form.field_title(name)}: {message.rstrip('.')}.")


_PART_FIELDS = {
    "texts": ("system", "joiner"),
    "rows": ("media", "keep", "sample", "deduplicate", "seed", "exclude"),
    "split": ("split",),
}


def _is_open(part: str, form: MappingForm, problems: Values[str, str]) -> bool:
    """Whether a collapsible part starts open: a field in it is set or invalid."""
    if any(name.split(".")[0] in _PART_FIELDS[part] for name in problems):
        return True
    match part:
        case "texts":
            return bool(form.system)
        case "rows":
            chosen = form.keep or form.sample or form.exclude or form.media in {"leave_out", "use"}
            return bool(chosen) or form.deduplicate != "none"
    return form.split.get("kind", "none") != "none"
