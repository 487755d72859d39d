"""Make datasets of feedback: one for each kind, with a new version for each time it is made.

The file of such a dataset has a row for each feedback, in the order of their numbers. A mapping
that users have edited is kept, and so are the rows that they have excluded.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session, col, select

from studio.db.feedback import Feedback
from studio.db.session import read_session, unit_of_work
from studio.db.tables import Dataset
from studio.errors import ConflictError
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping as RowMapping
from studio.services.accounts import owners
from studio.services.datasets import dataset_builds, pending_datasets, versions
from studio.services.datasets.pending_datasets import Upload
from studio.services.feedback import feedback
from studio.services.feedback.feedback import MAPPINGS, FeedbackKind
from studio.services.storage import atomic_dirs

NAMES: Mapping[FeedbackKind, str] = {
    "preference": "preferences from feedback",
    "judged": "ratings from feedback",
    "conversation": "answers from feedback",
}
"""The names that the datasets get; users may rename them."""

SOURCES: Mapping[FeedbackKind, str] = {
    "preference": "Feedback: preferences",
    "judged": "Feedback: ratings",
    "conversation": "Feedback: answers",
}
"""What marks the datasets that are made of feedback, whatever their names."""

METHODS: Mapping[FeedbackKind, str] = {"preference": "dpo", "judged": "kto", "conversation": "sft"}
"""The method that trains on each kind."""

ID_COLUMN = "feedback"
"""The column of a file that holds the number of the feedback."""

_PROVENANCE = ("said_in", "said_by", "model", "other_model")
"""Columns that say where a row is from, for filters; nothing is trained on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackDataset:
    """A dataset that was made of feedback."""

    dataset_id: int
    name: str
    version: int | None
    """None while a task reads its file."""
    rows: int = 0
    """Rows of the version, for training and for validation."""
    is_new: bool = True
    """Whether a version was made; not if nothing was said since the last one."""
    chore: int | None = None
    """The task that reads its file, if that is large."""


def find(db: Session, kind: FeedbackKind) -> Dataset | None:
    """Return the newest dataset of a kind that the current user may change."""
    query = select(Dataset).where(Dataset.source == SOURCES[kind])
    found = db.exec(query.order_by(col(Dataset.id).desc())).all()
    return next((one for one in found if owners.may_change(one.owner_id)), None)


def make(engine: Engine, folder: Path, kind: FeedbackKind, limits: Limits) -> FeedbackDataset:
    """Write all feedback of a kind to a dataset: a new one, or a new version of the one there is.

    Raises:
        ConflictError: there is no feedback of this kind, or the dataset is being read.
        InvalidError: the mapping of the dataset leaves no rows.

    """
    with read_session(engine) as db:
        rows = [_file_row(one) for one in feedback.oldest(db, kind)]
        existing = find(db, kind)
        mapping = MAPPINGS[kind]
        if existing is not None and existing.version is not None:
            mapping = _keep_exclusions(db, folder, existing, rows)
        mapping = _fit(mapping, kind, rows)
    if not rows:
        raise ConflictError(
            "There is no feedback of this kind yet.", hint="Rate or compare answers in a chat."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_dirs.staging_dir(folder) as stage:
        path = stage / "feedback.jsonl"
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text("".join(lines), encoding="utf-8")
        upload = Upload(
            path=path,
            filename=f"{NAMES[kind].replace(' ', '-')}.jsonl",
            name=NAMES[kind],
            may_rename=True,
            source=SOURCES[kind],
            mapping=mapping,
            limits=limits,
        )
        if existing is None:
            with unit_of_work(engine) as db:
                dataset = dataset_builds.import_file(db, folder, upload)
                return _describe(db, dataset.id or 0)
        result = dataset_builds.replace_file(engine, folder, existing.id or 0, upload)
    with read_session(engine) as db:
        chore = result.chore.id if result.chore else None
        return _describe(db, existing.id or 0, is_new=result.is_new, chore=chore)


def _describe(
    db: Session, dataset_id: int, *, is_new: bool = True, chore: int | None = None
) -> FeedbackDataset:
    dataset = db.get_one(Dataset, dataset_id)
    version = versions.current(db, dataset) if chore is None else None
    return FeedbackDataset(
        dataset_id=dataset_id,
        name=dataset.name,
        version=version.number if version else None,
        rows=version.train_rows + version.validation_rows if version else 0,
        is_new=is_new,
        chore=chore,
    )


def _file_row(said: Feedback) -> dict[str, Any]:
    provenance = {name: getattr(said, name) for name in _PROVENANCE}
    return {**said.row, ID_COLUMN: said.id, **provenance}


def _fit(mapping: RowMapping, kind: FeedbackKind, rows: Sequence[Mapping[str, Any]]) -> RowMapping:
    """Return a mapping that reads tools if a row has any: else a file has no such column."""
    if mapping.shape != MAPPINGS[kind].shape:
        return mapping
    roles = {role: columns for role, columns in mapping.roles.items() if role != "tools"}
    if any("tools" in row for row in rows):
        roles["tools"] = ["tools"]
    return mapping.model_copy(update={"roles": roles})


def _keep_exclusions(
    db: Session, folder: Path, dataset: Dataset, rows: Sequence[Mapping[str, Any]]
) -> RowMapping:
    """Return the mapping of a dataset with its excluded rows counted as in the new file."""
    mapping = versions.current_mapping(db, dataset.id or 0)
    if not mapping.exclude:
        return mapping
    path = pending_datasets.original_source(folder, dataset).path
    before = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    excluded = {
        row[ID_COLUMN] for number, row in enumerate(before, 1) if number in set(mapping.exclude)
    }
    numbers = [number for number, row in enumerate(rows, 1) if row[ID_COLUMN] in excluded]
    return mapping.model_copy(update={"exclude": numbers})
